/*
 * figures.h
 *		What the scheduler publishes of its work, for pg_stat_task_scheduler.
 */
#ifndef PG_TASK_FIGURES_H
#define PG_TASK_FIGURES_H

#include "postgres.h"

#include "shared/shared.h"

extern void figures_begin(void);
extern void figures_set(SchedulerFigure which, int64 value);
extern void figures_add(SchedulerFigure which, int64 value);
extern void figures_publish(void);
extern void figures_error(const ErrorData *error);

#endif /* PG_TASK_FIGURES_H */
