/*
 * idle.h
 *		When this process has nothing to do, so that another database may have its worker slot.
 */
#ifndef PG_TASK_IDLE_H
#define PG_TASK_IDLE_H

#include "postgres.h"

#include "shared/clock.h"

extern void idle_show(ClockNow now);
extern MonoTime idle_until(void);
extern MonoTime idle_next_need(ClockNow now);

#endif /* PG_TASK_IDLE_H */
