/*
 * row_writes.h
 *		The rows that the scheduler writes besides claims.
 */
#ifndef PG_TASK_ROW_WRITES_H
#define PG_TASK_ROW_WRITES_H

#include "postgres.h"

#include "shared/clock.h"

extern void row_writes_run(ClockNow now);
extern void row_writes_orphans(void);
extern MonoTime row_writes_until(ClockNow now);

#endif /* PG_TASK_ROW_WRITES_H */
