/*
 * outcome.h
 *		The row of one run: its request, and its outcome.
 *
 * Every function runs inside a transaction of the caller, as the table's owner (owner_become),
 * with an active snapshot.
 */
#ifndef PG_TASK_OUTCOME_H
#define PG_TASK_OUTCOME_H

#include "postgres.h"

#include "shared/task.h"
#include "task/rows.h"
#include "task/statement.h"
#include "task/table.h"

extern bool row_request(const TaskTable *table, TaskRun run, RowRequest *request);
extern bool row_end(const TaskTable *table, TaskRun run, const TaskResult *result);
extern bool outcome_done(const TaskTable *table, RowFinish *finish);
extern bool outcome_failed(const TaskTable *table, TaskRun run, TaskResult *result,
						   const TaskDefaults *queue, bool wait);
extern bool outcome_done_later(const TaskTable *table, TaskRun run, const char *response);
extern TimestampTz outcome_retry_at(const RowRetry *retry, TimestampTz stop,
									const TaskDefaults *queue, const SettingsTask *role);
extern bool outcome_lost(const TaskTable *table, TaskRun run, const TaskFailure *crash);
extern void outcome_on_failure(const TaskTable *table, RowKey row, int64 role_id, OnFailure says);

/* for statements that write how tasks have ended without a run */
extern void arg_failure(StatementArgs *args, const Failure *failure, Oid role);
extern void note_unstarted_row(uint64 i, EventKind kind, const char *error, const char *sqlstate);

#endif /* PG_TASK_OUTCOME_H */
