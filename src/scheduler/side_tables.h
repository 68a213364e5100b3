/*
 * side_tables.h
 *		When the scheduler reads and writes the tables beside the task table.
 */
#ifndef PG_TASK_SIDE_TABLES_H
#define PG_TASK_SIDE_TABLES_H

#include "scheduler/round.h"

extern const SchedulerJob rules_reader_job;
extern const SchedulerJob rate_store_job;
extern const SchedulerJob rate_tidy_job;

extern bool rules_reader_roles_changed(void);
extern bool rules_reader_read(void);
extern void rate_store_write(const DispatchRound *round);

#endif /* PG_TASK_SIDE_TABLES_H */
