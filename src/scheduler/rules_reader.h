/*
 * rules_reader.h
 *		When the scheduler reads the queue table.
 */
#ifndef PG_TASK_RULES_READER_H
#define PG_TASK_RULES_READER_H

#include "postgres.h"

#include "scheduler/job.h"

extern const SchedulerJob rules_reader_job;

extern bool rules_reader_roles_changed(void);
extern bool rules_reader_read(void);

#endif /* PG_TASK_RULES_READER_H */
