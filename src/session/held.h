/*
 * held.h
 *		The runs that sessions and programs hold: the table is used as its owner, and what the end
 *		of the transaction does with runs.
 */
#ifndef PG_TASK_HELD_H
#define PG_TASK_HELD_H

#include "postgres.h"

#include "access/xact.h"

#include "shared/takers.h"
#include "task/events.h"
#include "task/table.h"

/* A handle: the number of an entry, and the run.  With it, scanf and printf name the same. */
#define HELD_HANDLE "%d." INT64_FORMAT ".%d." INT64_FORMAT

/* What the current transaction does with a run, if it commits. */
typedef struct HeldChange HeldChange;

extern void held_check_session(const char *function);
extern void
held_call_as_owner(Oid relid, void (*call)(const TaskTable *table, void *arg), void *arg);

extern HeldChange *held_fetched(TakenRef ref);
extern void held_started(HeldChange *change, const char *queue, const char *role, int64 waited);
extern void held_ended(TakenRef ref, const TaskEvent *event);
extern bool held_has_ended(TaskRun run);

/* For pg_task.c. */
extern void held_transaction_ended(XactEvent event);
extern void held_level_ended(int level, bool committed);

#endif /* PG_TASK_HELD_H */
