/*
 * held.c
 *		What a session needs to take runs, and to end them: the task table, used as its owner, and
 *		what the end of the transaction does with the runs.
 *
 * The session may have run code of anybody before: code of the owner's must not run in it, unless
 * it has the owner's rights.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "session/held.h"
#include "session/table_access.h"
#include "shared/shared.h"
#include "shared/slots.h"
#include "shared/statistics.h"
#include "task/owner.h"
#include "task/owner_code.h"
#include "task/statement.h"

/* ---- the end of the transaction ---- */

struct HeldChange
{
	TakenRef ref;
	int level;		  /* of the transaction or subtransaction */
	bool ends;		  /* else it was fetched */
	TaskEvent *event; /* NULL: none */
};

/*
 * In the order in which they were made, in TopTransactionContext.  Static, because it collects from
 * all commands of a transaction; its end clears it.
 */
static List *changes;

static HeldChange *
add_change(TakenRef ref, bool ends)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	HeldChange *change = palloc0(sizeof(HeldChange));

	change->ref = ref;
	change->level = GetCurrentTransactionNestLevel();
	change->ends = ends;
	changes = lappend(changes, change);
	MemoryContextSwitchTo(old);
	return change;
}

/* This event is reported when the change is committed. */
static void
set_event(HeldChange *change, const TaskEvent *event)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	change->event = event_copy(event);
	MemoryContextSwitchTo(old);
}

/*
 * This session has fetched a run, which is held when its transaction commits.  What is returned
 * lives as long as the transaction.
 */
HeldChange *
held_fetched(TakenRef ref)
{
	return add_change(ref, false);
}

/* The row of a run that was fetched is read: the run has begun. */
void
held_started(HeldChange *change, const char *queue, const char *role, int64 waited)
{
	TaskEvent event = {.kind = EVENT_STARTED,
					   .id = change->ref.run.id,
					   .attempt = change->ref.run.attempt,
					   .queue = queue,
					   .role_name = role,
					   .elapsed = waited};

	set_event(change, &event);
}

/* The row of a run is written: it has ended, which is reported (unless NULL) with the commit. */
void
held_ended(TakenRef ref, const TaskEvent *event)
{
	HeldChange *change = add_change(ref, true);

	if (event)
		set_event(change, event);
}

/* Has this transaction ended the run? */
bool
held_has_ended(TaskRun run)
{
	ListCell *cell;

	foreach(cell, changes)
	{
		const HeldChange *change = lfirst(cell);

		if (change->ends && task_same_run(change->ref.run, run))
			return true;
	}
	return false;
}

/*
 * Undo what a transaction or a subtransaction has done: a run that was fetched is returned, and one
 * whose end was written is held on.
 */
static void
undo(const HeldChange *change)
{
	if (change->ends)
		taken_set_ending(change->ref, false);
	else
		taken_end(change->ref, TAKEN_RETURNED);
}

/* Nothing here may raise an error: after a commit, the server would panic. */
void
held_transaction_ended(XactEvent event)
{
	ListCell *cell;

	if (changes == NIL)
		return;
	if (event == XACT_EVENT_PRE_PREPARE)
		foreach(cell, changes)
			if (!((HeldChange *) lfirst(cell))->ends)
				ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
								errmsg("cannot prepare a transaction that has taken tasks")));
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	foreach(cell, changes)
	{
		const HeldChange *change = lfirst(cell);

		/* of one that is prepared nobody learns when it ends */
		if (event != XACT_EVENT_COMMIT)
			undo(change);
		else
		{
			if (change->ends)
				taken_end(change->ref, TAKEN_WRITTEN);
			else
				taken_hold(change->ref);
			if (change->event)
				event_report(change->event);
		}
	}
	if (event == XACT_EVENT_COMMIT)
		statistics_flush();
	changes = NIL;
}

/* A transaction or subtransaction of this level ends. */
void
held_level_ended(int level, bool committed)
{
	ListCell *cell;

	foreach(cell, changes)
	{
		HeldChange *change = lfirst(cell);

		if (change->level < level)
			continue;
		change->level = level - 1;
		if (committed)
			continue;
		undo(change);
		changes = foreach_delete_current(changes, cell);
	}
}

/* ---- the table ---- */

/* Raise an error if runs cannot be taken or ended in this session now. */
void
held_check_session(const char *function)
{
	shared_require();
	if (RecoveryInProgress())
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("%s must be called on the primary", function),
						errdetail("A standby runs no tasks.")));
	PreventCommandIfReadOnly(function);
	if (InSecurityRestrictedOperation() || owner_acts())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("%s cannot be called within a security-restricted operation", function)));
}

/* Kept from call to call, in TopMemoryContext. */
static TaskTable *table;

/*
 * Call a function that executes statements on the task table, as the owner of the table.  After an
 * error that it raises, the session has its own rights again.
 */
void
held_call_as_owner(Oid relid, void (*call)(const TaskTable *table, void *arg), void *arg)
{
	OwnerScope scope;
	int old_bar;
	bool barred;

	if (!OidIsValid(relid) || !statement_lock_table(&table, relid, RowExclusiveLock) ||
		!table->whole)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("the task table of this database cannot be used")));
	barred = table_access_bars_code(table->owner);
	if (barred && table->code)
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("code of the owner of the task table must not run in this session"),
						errdetail("It would run with this write: %s.", table->code),
						errhint("Have the owner drop it, or connect as the owner.")));
	old_bar = owner_code_bar(barred ? ERRCODE_INSUFFICIENT_PRIVILEGE : 0);
	PG_TRY();
	{
		owner_become_in_session(table->owner, &scope);
		PushActiveSnapshot(GetTransactionSnapshot());
		call(table, arg);
		PopActiveSnapshot();
		owner_return(&scope);
	}
	PG_CATCH();
	{
		/* the server restores the rest */
		(void) owner_code_bar(old_bar);
		owner_abandon();
		PG_RE_THROW();
	}
	PG_END_TRY();
	(void) owner_code_bar(old_bar);
}
