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
#include "task/owner_code.h"
#include "task/statement.h"

/* ---- the end of the transaction ---- */

/* What this transaction does with a run, if it commits. */
typedef struct HeldChange
{
	TakenRef ref;
	int level;	  /* of the transaction or subtransaction */
	bool ends;	  /* else it was fetched */
	bool reports; /* this event */
	TaskEvent event;
} HeldChange;

/*
 * In the order in which they were made, in TopTransactionContext.  Static, because it collects from
 * all commands of a transaction; its end clears it.
 */
static List *changes;

static void
add_change(TakenRef ref, bool ends, const TaskEvent *event)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	HeldChange *change = palloc0(sizeof(HeldChange));

	change->ref = ref;
	change->level = GetCurrentTransactionNestLevel();
	change->ends = ends;
	change->reports = event != NULL;
	if (event)
	{
		change->event = *event;
		change->event.queue = pstrdup(event->queue);
		change->event.role_name = pstrdup(event->role_name);
		change->event.sqlstate = event->sqlstate ? pstrdup(event->sqlstate) : NULL;
		change->event.error = event->error ? pstrdup(event->error) : NULL;
	}
	changes = lappend(changes, change);
	MemoryContextSwitchTo(old);
}

/* This session has fetched a run, which is held when its transaction commits. */
void
held_fetched(TakenRef ref)
{
	add_change(ref, false, NULL);
}

/* The same: its row was read. */
void
held_started(TakenRef ref, const char *queue, const char *role, int64 waited)
{
	TaskEvent event = {.kind = EVENT_STARTED,
					   .id = ref.run.id,
					   .attempt = ref.run.attempt,
					   .queue = queue,
					   .role_name = role,
					   .elapsed = waited};

	add_change(ref, false, &event);
}

/* The row of a run is written: it has ended, which is reported (unless NULL) with the commit. */
void
held_ended(TakenRef ref, const TaskEvent *event)
{
	add_change(ref, true, event);
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
			if (change->reports)
				event_report(&change->event);
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
 * Begin to use the task table as its owner.  The caller ends that by held_end, and after an error
 * calls held_abandon.
 */
const TaskTable *
held_begin(Oid relid, HeldScope *scope)
{
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
	owner_become_in_session(table->owner, &scope->owner);
	scope->barred = owner_code_bar(barred ? ERRCODE_INSUFFICIENT_PRIVILEGE : 0);
	PushActiveSnapshot(GetTransactionSnapshot());
	return table;
}

void
held_end(const HeldScope *scope)
{
	PopActiveSnapshot();
	(void) owner_code_bar(scope->barred);
	owner_return(&scope->owner);
}

/* An error has ended what held_begin began: the server restores the rest. */
void
held_abandon(const HeldScope *scope)
{
	if (!owner_acts())
		return;
	(void) owner_code_bar(scope->barred);
	owner_abandon();
}
