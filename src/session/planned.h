/*
 * planned.h
 *		Rows that this transaction has planned or stopped, for the figures of pg_stat_task.
 */
#ifndef PG_TASK_PLANNED_H
#define PG_TASK_PLANNED_H

#include "postgres.h"

#include "shared/statistics.h"

extern void planned_count(const text *queue, StatCounter counter);
extern void planned_committed(void);
extern void planned_forget(void);

#endif /* PG_TASK_PLANNED_H */
