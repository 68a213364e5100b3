/*
 * unstarted.h
 *		Tasks that will not be started, until their rows are written.
 */
#ifndef PG_TASK_UNSTARTED_H
#define PG_TASK_UNSTARTED_H

#include "postgres.h"

#include "scheduler/refused.h"
#include "task/rows.h"
#include "task/table.h"

extern bool unstarted_fail(TaskPlace place, const char *role, const char *error, const char *hint,
						   int sqlstate, bool repeats);
extern void unstarted_expire(const Candidate *candidate);
extern bool unstarted_any(void);
extern void unstarted_write(const TaskTable *table, TimestampTz now);
extern void unstarted_written(void);
extern void unstarted_write_failed(const BatchFailure *failure);

#endif /* PG_TASK_UNSTARTED_H */
