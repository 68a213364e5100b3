/*
 * pending.c
 *		What this transaction will notify other processes of, if it commits.
 *
 * After a commit, when other sessions can see the rows, the backend writes its hints (the groups in
 * which rows wait) into the scheduler's slot and wakes the scheduler.  It writes nothing to shared
 * memory before, so a rollback costs nothing, and a commit waits for no other process.
 *
 * The callbacks also release a database that the transaction held.  This file knows neither
 * commands nor triggers.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "utils/memutils.h"

#include "compat.h"
#include "session/pending.h"
#include "session/planned.h"
#include "shared/shared.h"
#include "shared/waiters.h"

/*
 * Static, because it collects from all commands and triggers of a transaction.  Its end clears it,
 * after a commit as after an error.
 */
static struct
{
	Oid relid;	 /* the task table; the root if it is partitioned */
	Oid ignored; /* a table with our triggers that is not the task table */
	int count;
	SharedHint hints[SHARED_HINTS];
	int events; /* SharedEvents */
	SharedIds watched;
	bool queues;	 /* the queue table was changed */
	bool several;	 /* more than one table that may be the task table was written */
	bool supervisor; /* wake the supervisor: databases or roles have changed */
	List *settings;	 /* databases and roles whose settings were changed, InvalidOid for all of
					  * them; in TopTransactionContext */
	int hold_level;	 /* nesting level of the outermost transaction that holds a database; 0: none */
} pending;

/*
 * Is this not the task table?  Any user may put our triggers on a table, so compare it with the one
 * that the scheduler serves, if that is known.
 */
static bool
is_other_table(Oid relid)
{
	Oid known = shared_scheduler_relid(MyDatabaseId, false);

	return OidIsValid(known) && known != relid;
}

/*
 * Record events (SharedEvents) of a table; its scheduler is notified after the commit.  Returns
 * false if no scheduler serves the table.
 */
bool
pending_add_events(Oid relid, int events)
{
	if (pending.relid != relid)
	{
		if (pending.ignored == relid || is_other_table(relid))
		{
			pending.ignored = relid;
			return false;
		}
		pending.several |= OidIsValid(pending.relid);
		pending.relid = relid;
	}
	pending.events |= events;
	return true;
}

/* Return the hint of a table that was added last, or NULL. */
SharedHint *
pending_last_hint(Oid relid)
{
	if (pending.relid != relid || pending.count == 0)
		return NULL;
	return &pending.hints[pending.count - 1];
}

/*
 * Record that rows wait in a group of a table; its scheduler gets the hint after the commit.
 * NULL: the group is unknown, and the scheduler must scan.
 */
void
pending_add_hint(Oid relid, const SharedHint *hint)
{
	if (pending_add_events(relid, 0) &&
		(hint == NULL || !shared_hint_merge(pending.hints, &pending.count, SHARED_HINTS, hint)))
		pending.events |= SHARED_SCAN;
}

/* Record that a row of a table waits for this task. */
void
pending_add_watched(Oid relid, int64 id)
{
	if (pending_add_events(relid, 0) && !shared_ids_add(&pending.watched, id))
		pending.events |= SHARED_DEPENDENTS;
}

/* Record that this task of a table, which had not ended, has: rows may wait for it. */
void
pending_add_ended(Oid relid, int64 id)
{
	if (pending_add_events(relid, 0))
		waiters_end(id);
	pending_add_watched(relid, id);
}

/*
 * Record a change of a table that may be the queue table; the scheduler reads it again after the
 * commit.  Any user may put our trigger on a table.
 */
void
pending_add_queues(Oid relid)
{
	Oid known = shared_scheduler_relid(MyDatabaseId, true);

	pending.queues |= !OidIsValid(known) || known == relid;
}

/* Nothing here may raise an error: after a commit, the server would panic. */
void
pending_transaction_ended(XactEvent event)
{
	ListCell *cell;

	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	/* before the hints: a row that waits in a queue never is known before the rule of the queue */
	if (event == XACT_EVENT_COMMIT && pending.queues)
		shared_scheduler_wake(MyDatabaseId, SHARED_QUEUES);
	/* without an id nothing was written: ON CONFLICT has dropped the rows */
	if (event == XACT_EVENT_COMMIT && OidIsValid(pending.relid) &&
		TransactionIdIsValid(GetTopTransactionIdIfAny()))
	{
		if (pending.several)
			pending.events |= SHARED_SCAN | SHARED_RECONCILE | SHARED_EXPIRY | SHARED_DEPENDENTS;
		if (pending.count > 0 || pending.watched.count > 0 || pending.events != 0)
			shared_scheduler_report(MyDatabaseId,
									&(SharedReport){
										.relid = pending.several ? InvalidOid : pending.relid,
										.events = pending.events,
										.nhints = pending.count,
										.hints = pending.hints,
										.watched = &pending.watched,
									});
	}
	if (event == XACT_EVENT_COMMIT && OidIsValid(pending.relid) && !pending.several &&
		TransactionIdIsValid(GetTopTransactionIdIfAny()))
		planned_committed();
	planned_forget();
	if (pending.hold_level > 0)
		hold_release();
	/* of a subtransaction that was rolled back, too, which changes nothing for their tasks */
	if (event == XACT_EVENT_COMMIT)
		foreach(cell, pending.settings)
			shared_settings_changed(lfirst_oid(cell));
	if (event == XACT_EVENT_COMMIT && pending.supervisor)
		shared_databases_changed();
	pending.relid = pending.ignored = InvalidOid;
	pending.count = pending.events = pending.hold_level = 0;
	pending.watched.count = 0;
	pending.queues = pending.several = pending.supervisor = false;
	pending.settings = NIL;
}

/*
 * End of a subtransaction: what it did now depends on its parent, or is discarded.  Hints of an
 * aborted subtransaction are kept: the scheduler then finds no such rows.
 */
void
pending_subtransaction_ended(SubXactEvent event)
{
	int level = GetCurrentTransactionNestLevel();
	bool aborted = event == SUBXACT_EVENT_ABORT_SUB;

	if (!aborted && event != SUBXACT_EVENT_COMMIT_SUB)
		return;
	if (pending.hold_level >= level)
	{
		if (aborted)
			hold_release();
		pending.hold_level = aborted ? 0 : level - 1;
	}
}

/*
 * Record that this transaction changes settings of a database or role; InvalidOid: of all of them.
 * Their counters are incremented at the commit.
 */
void
pending_add_settings(Oid object)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	pending.settings = list_append_unique_oid(pending.settings, object);
	MemoryContextSwitchTo(old);
}

/* The command that runs will change which databases should have a scheduler, if it is committed. */
void
pending_wake_supervisor(void)
{
	pending.supervisor = true;
}

/*
 * This transaction holds a database: release it at the end.  The outermost level counts: if only a
 * subtransaction inside it is rolled back, the holds of that one are kept, too.
 */
void
pending_add_hold(void)
{
	if (pending.hold_level == 0)
		pending.hold_level = GetCurrentTransactionNestLevel();
}
