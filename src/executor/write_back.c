/*
 * write_back.c
 *		The row of the running task: an executor writes the outcome into it, and reads from it a
 *		request that is, with its input, too long for the ring.
 *
 * Nothing else in an executor has other rights than those of the task's role.  Both are done as the
 * owner of the task table, in a security-restricted context, with a fixed search_path.  Both
 * statements carry the fence (state WORK, the attempt and the time of the claim): if the row is no
 * longer this run, they find none.
 *
 * This file starts and ends no transaction, and does not decide what the outcome is.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "executor/slot.h"
#include "executor/write_back.h"
#include "settings.h"
#include "shared/waiters.h"
#include "task/outcome.h"
#include "task/owner.h"
#include "task/owner_code.h"
#include "task/rows.h"
#include "task/statement.h"
#include "task/table.h"

/*
 * The description of the task table, in TopMemoryContext, or NULL.  Static, because all runs of
 * this executor use it until the table changes.
 */
static TaskTable *table = NULL;

/*
 * Lock the table, so that its definition cannot change until the end of the transaction.
 *
 * If the table has become unusable, or has code of its owner's that must not run in this process,
 * an error ends the run.  The run has failed if it made that change itself, or if the request has
 * "committed" a part of itself: another run would repeat that.  Otherwise the scheduler adds the
 * missing column, or has the row wait, and the task is run again.
 */
static void
lock_table(const SharedTask *task, bool committed, LOCKMODE mode)
{
	if (!statement_lock_table(&table, task->relid, mode))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE), errmsg("the task table is gone")));
	if (table->whole && (table->code == NULL || task->trusted))
		return;
	if (watch_changed_here())
		ereport(ERROR, (errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
						errmsg("the task has made the task table unusable"),
						errdetail("All that it did was rolled back.")));
	if (committed)
		ereport(ERROR, (errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
						errmsg("the task table became unusable while the task ran")));
	ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("the task table has changed")));
}

/*
 * Lock the table, and act as its owner.  Meanwhile, code of the owner's that comes without
 * conflicting with our locks is refused when it is called, with the errors of lock_table.
 */
static void
begin_acting(const SharedTask *task, bool committed, LOCKMODE mode, OwnerScope *scope)
{
	lock_table(task, committed, mode);
	owner_become(table->owner, scope);
	if (!task->trusted)
		(void) owner_code_bar(committed ? ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION
										: ERRCODE_TABLE_CHANGED);
	PushActiveSnapshot(GetTransactionSnapshot());
}

static void
end_acting(const OwnerScope *scope)
{
	PopActiveSnapshot();
	(void) owner_code_bar(0);
	owner_return(scope);
}

/*
 * Read the request of the task, and its input, from its row, into the current memory context.
 * Returns false if the row is no longer this run.  A snapshot has been taken in the transaction
 * when this returns.
 */
bool
write_back_read_request(const SharedTask *task, bool committed, RowRequest *request)
{
	OwnerScope scope;
	bool found;

	Assert(IsTransactionState() && !owner_acts());
	begin_acting(task, committed, AccessShareLock, &scope);
	found = row_request(table, task->run, request);
	end_acting(&scope);
	return found;
}

/* Acting as the owner, to write outcomes in a transaction that may be read-only. */
typedef struct Writing
{
	bool read_only;
	OwnerScope scope;
} Writing;

/*
 * Drop all temporary objects, within a transaction.  The write-back comes next and runs with the
 * rights of the table's owner: an unqualified name in one of the owner's triggers would find a
 * temporary object first.
 *
 * A dropped object may have toasted catalog values, and reading these needs a snapshot.
 */
static void
drop_temporary_objects(void)
{
	Oid schema;
	Oid toast_schema;

	Assert(IsTransactionState());
	GetTempNamespaceState(&schema, &toast_schema);
	if (!OidIsValid(schema))
		return;
	CommandCounterIncrement();
	PortalHashTableDeleteAll();
	PushActiveSnapshot(GetTransactionSnapshot());
	ResetTempTableNamespace();
	PopActiveSnapshot();
}

/* Begin to write, into the table that was locked by this task. */
static void
begin_writing(const SharedTask *task, bool committed, Writing *writing)
{
	Assert(IsTransactionState() && !owner_acts());
	writing->read_only = XactReadOnly;
	XactReadOnly = false;
	drop_temporary_objects();
	/* it waits for locks without a limit, and no timeout of the transaction ends it */
	if (LockTimeout > 0)
		(void) set_config_option("lock_timeout", "0", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL,
								 true, 0, false);
	compat_stop_transaction_timeout();
	/* from here on nobody adds a trigger that the write would fire */
	begin_acting(task, committed, RowExclusiveLock, &writing->scope);
}

static void
end_writing(const Writing *writing)
{
	end_acting(&writing->scope);
	XactReadOnly = writing->read_only;
}

/*
 * Write what can be written without a statement first, and then what is left, with the id and
 * the labels that triggers of the owner's see when a task runs alone.
 */
static bool
write_members(const SharedTask *const *tasks, const TaskResult *results, int count)
{
	RowFinish *finishes = palloc0(count * sizeof(RowFinish));
	int i;

	for (i = 0; i < count; i++)
	{
		finishes[i].run = tasks[i]->run;
		finishes[i].role = tasks[i]->role_name;
		finishes[i].result = &results[i];
	}
	direct_finish(table, finishes, count);
	for (i = 0; i < count; i++)
	{
		int nest_level = 0;
		bool written;

		if (finishes[i].finished && !finishes[i].repeats && !finishes[i].removes)
			continue;
		if (tasks[i]->flow[0] != '\0' || tasks[i]->meta_len > 0)
			nest_level = NewGUCNestLevel();
		show_labels(tasks[i]);
		written = outcome_done(table, &finishes[i]);
		if (nest_level > 0)
			AtEOXact_GUC(false, nest_level);
		if (!written)
			return false;
	}
	return true;
}

/* The transaction that is open, which has written DONE, is as durable as pg_task's setting. */
static void
set_durability(void)
{
	const char *value = settings_commit();

	if (value)
		(void) set_config_option("synchronous_commit", value, PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_LOCAL, true, 0, false);
}

/*
 * Write that the tasks of a batch, all of one table, are DONE, in the transaction in which they
 * ran.  Returns false if that must not commit, because a row is no longer that run.
 *
 * As in write_back_outcome, nothing of the tasks runs any more.
 */
bool
write_back_batch(const SharedTask *const *tasks, const TaskResult *results, int count)
{
	Writing writing;
	bool written;
	int i;

	begin_writing(tasks[0], false, &writing);
	owner_pin_path();
	written = write_members(tasks, results, count);
	end_writing(&writing);
	if (written)
		set_durability();
	for (i = 0; written && i < count; i++)
		waiters_end(tasks[i]->run.id);
	return written;
}

/*
 * Write the outcome, in the transaction that is open, which may be read-only.  Returns false if the
 * row is no longer this run.
 *
 * After a request, the caller has fired its deferred triggers.  Its temporary objects are dropped
 * here.  So nothing of the task runs with the owner's rights.
 */
bool
write_back_outcome(const SharedTask *task, TaskResult *result, bool committed)
{
	RowFinish finish = {.run = task->run, .role = task->role_name, .result = result};
	Writing writing;
	bool written;

	begin_writing(task, committed, &writing);
	if (result->outcome == TASK_DONE)
	{
		if (!result->goes_on)
			direct_finish(table, &finish, 1);
		written = outcome_done(table, &finish);
	}
	else if (result->outcome == TASK_STOPPED)
		written = row_end(table, task->run, result);
	else
		written = outcome_failed(table, task->run, result, &task->defaults, true);
	end_writing(&writing);
	if (written && result->outcome == TASK_DONE)
		set_durability();
	if (written)
		waiters_end(task->run.id);
	return written;
}
