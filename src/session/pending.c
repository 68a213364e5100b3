/*
 * pending.c
 *		What this transaction will tell the scheduler of rows, and count, if it commits.
 *
 * After a commit, when other sessions can see the rows, the backend writes its hints (the groups in
 * which rows wait) into the scheduler's slot and wakes the scheduler.  It writes nothing to shared
 * memory before, so a rollback costs nothing, and a commit waits for no other process.
 *
 * This file checks no row and changes none.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "commands/async.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/hsearch.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "compat.h"
#include "session/notices.h"
#include "session/pending.h"
#include "settings.h"
#include "shared/shared.h"
#include "shared/statistics.h"
#include "shared/waiters.h"
#include "task/owner.h"
#include "task/queue_table.h"

COMPAT_FUNCTION(pg_task_queue_changed);

/* Rows of a queue that this transaction has planned or stopped, for pg_stat_task. */
typedef struct QueueCounts
{
	char queue[TASK_QUEUE_MAX + 1];
	int64 planned;
	int64 stopped;
} QueueCounts;

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
	bool queues;  /* the queue table was changed */
	bool several; /* more than one table that may be the task table was written */
	bool counted;
	QueueCounts counts; /* of the queue of the first row that was counted */
	HTAB *others;		/* of other queues, in TopTransactionContext; NULL: most have none */
} pending;

/* ---- tables ---- */

/*
 * Record events (SharedEvents) of a table; its scheduler is notified after the commit.  Returns
 * false if no scheduler serves the table: any user may put our triggers on a table, so it is
 * compared with the one that the scheduler serves, if that is known.
 */
bool
pending_add_events(Oid relid, int events)
{
	if (pending.relid != relid)
	{
		Oid known =
			pending.ignored == relid ? InvalidOid : shared_scheduler_relid(MyDatabaseId, false);

		if (pending.ignored == relid || (OidIsValid(known) && known != relid))
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

/* Of rows of the queue table that say what has no effect. */
static Notices useless;

/* A value of a row of the queue table; NULL if the column is missing or has another type. */
static Datum
queue_column(const TriggerData *data, HeapTuple row, QueueColumn which, bool *isnull)
{
	TupleDesc desc = RelationGetDescr(data->tg_relation);
	int number = SPI_fnumber(desc, queue_columns[which].name);

	*isnull = number <= 0 || SPI_gettypeid(desc, number) != queue_columns[which].type;
	return *isnull ? (Datum) 0 : heap_getattr(row, number, desc, isnull);
}

/* Tell whoever writes a row of the queue table which of its columns has no effect. */
static void
check_effect(const TriggerData *data, HeapTuple row)
{
	bool no_queue;
	Datum queue = queue_column(data, row, QUEUE_QUEUE, &no_queue);
	bool no_fair;
	Datum fair = queue_column(data, row, QUEUE_FAIR, &no_fair);
	bool no_total;
	bool no_rate;
	bool no_per;
	char *name;

	if (no_queue)
		return;
	name = TextDatumGetCString(queue);
	(void) queue_column(data, row, QUEUE_TOTAL, &no_total);
	(void) queue_column(data, row, QUEUE_RATE, &no_rate);
	(void) queue_column(data, row, QUEUE_PER, &no_per);
	if (!no_per && no_rate)
		notices_raise(&useless, "\"per\" has no effect without \"rate\"",
					  "Set \"rate\" in the same row.");
	if (queue_is_pattern(name))
		return;
	if (!no_total)
		notices_raise(&useless, "\"total\" has no effect in the row of one queue",
					  "Set \"max\", or \"total\" in the row of a pattern.");
	if (!no_fair && DatumGetBool(fair))
		notices_raise(&useless, "\"fair\" has no effect in the row of one queue",
					  "Set it in the row of a pattern, whose queues take turns.");
	if (strchr(name, '*'))
		notices_raise(&useless, psprintf("\"%s\" is the name of one queue, and no pattern", name),
					  "In a pattern, \"%\" stands for any characters.");
}

/* Of rows of a queue table that does not count. */
static Notices foreign;

/* Warn whoever writes a row of a queue table that has no effect: the task table is another's. */
static void
check_owner(Relation rel)
{
	Oid task = Shared ? shared_database_found(MyDatabaseId).relid : InvalidOid;
	Oid owner = relation_owner(task);

	if (!OidIsValid(owner) || side_table_find(SIDE_QUEUE, task) != RelationGetRelid(rel) ||
		owner == rel->rd_rel->relowner || notices_told(&foreign) > 0)
		return;
	foreign.told++;
	ereport(WARNING, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					  errmsg("the rules in \"%s\" have no effect: the task table has another owner",
							 RelationGetRelationName(rel)),
					  errhint("SELECT pg_task_change_owner(%s) gives it to that one.",
							  quote_literal_cstr(GetUserNameFromId(owner, false)))));
}

/*
 * Trigger on the queue table, AFTER INSERT OR UPDATE OR DELETE, FOR EACH ROW, or AFTER TRUNCATE:
 * the scheduler reads the table again after the commit.  What is written is checked by the
 * constraints of the table; here it is told what has no effect.  Any user may put this trigger on a
 * table.
 */
Datum
pg_task_queue_changed(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Oid known;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(data->tg_event) ||
		(!TRIGGER_FIRED_FOR_ROW(data->tg_event) && !TRIGGER_FIRED_BY_TRUNCATE(data->tg_event)))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("pg_task_queue_changed must be called AFTER INSERT OR UPDATE OR"
							   " DELETE, FOR EACH ROW, or AFTER TRUNCATE")));
	if (TRIGGER_FIRED_BY_INSERT(data->tg_event) || TRIGGER_FIRED_BY_UPDATE(data->tg_event))
	{
		check_owner(data->tg_relation);
		check_effect(data, TRIGGER_FIRED_BY_INSERT(data->tg_event) ? data->tg_trigtuple
																   : data->tg_newtuple);
	}
	if (Shared)
	{
		known = shared_scheduler_relid(MyDatabaseId, true);
		pending.queues |= !OidIsValid(known) || known == RelationGetRelid(data->tg_relation);
	}
	return PointerGetDatum(NULL);
}

/* ---- rows ---- */

/* Read the group and the position of a row.  Returns false if they do not fit into a hint. */
static bool
read_hint(const TriggerRow *row, SharedHint *hint)
{
	bool isnull[5];
	bool max_isnull;
	Datum max;
	Datum role;
	Datum queue;

	hint->place.id = DatumGetInt64(trigger_value(row, COLUMN_ID, &isnull[0]));
	hint->place.dt = DatumGetTimestampTz(trigger_value(row, COLUMN_DT, &isnull[1]));
	hint->priority = DatumGetInt32(trigger_value(row, COLUMN_PRIORITY, &isnull[2]));
	max = trigger_value(row, COLUMN_MAX, &max_isnull);
	hint->max = max_isnull ? TASK_UNLIMITED : DatumGetInt32(max);
	if (!trigger_is_null(row, COLUMN_HOLD))
		hint->max = 0;
	role = trigger_value(row, COLUMN_ROLE, &isnull[3]);
	queue = trigger_value(row, COLUMN_QUEUE, &isnull[4]);
	if (isnull[0] || isnull[1] || isnull[2] || isnull[3] || isnull[4] ||
		toast_raw_datum_size(queue) - VARHDRSZ >= NAMEDATALEN)
		return false;
	hint->role = *DatumGetName(role);
	hint->role_id = trigger_role_id(row);
	hint->several = false;
	text_to_cstring_buffer(DatumGetTextPP(queue), hint->queue, NAMEDATALEN);
	return true;
}

/*
 * Record that a row waits; the scheduler gets a hint.  If the group does not fit into one, or there
 * are too many, it must scan.
 */
static void
add_hint(Oid table, const TriggerRow *row)
{
	SharedHint hint;
	bool fits = read_hint(row, &hint);

	if (pending_add_events(table, 0) &&
		(!fits || !shared_hint_merge(pending.hints, &pending.count, SHARED_HINTS, &hint)))
		pending.events |= SHARED_SCAN;
}

/* Record that a row of a table waits for this task. */
static void
add_watched_id(Oid table, int64 id)
{
	if (pending_add_events(table, 0) && !shared_ids_add(&pending.watched, id))
		pending.events |= SHARED_DEPENDENTS;
}

/*
 * Record for which tasks a row waits: the one that it watches, or, by the rule "any", all of them.
 * What the scheduler has written itself, it knows.
 */
static void
add_watched(Oid table, const TriggerRow *row)
{
	bool isnull;
	Datum rule;
	AfterIds after;
	int i;

	if (owner_acts())
		return;
	add_watched_id(table, DatumGetInt64(trigger_value(row, COLUMN_WAITS, &isnull)));
	rule = trigger_value(row, COLUMN_RULE, &isnull);
	if (isnull || !value_is_word(rule, "any") || !trigger_after(row, &after))
		return;
	if (after.count > SHARED_IDS || after.removed)
		pending_add_events(table, SHARED_DEPENDENTS);
	else
		for (i = 0; i < after.count; i++)
			add_watched_id(table, after.ids[i]);
}

/* Record that a user has ended or removed a task that had not ended: others may wait for it. */
void
pending_add_ended(Oid table, const TriggerRow *row)
{
	bool isnull;
	int64 id = DatumGetInt64(trigger_value(row, COLUMN_ID, &isnull));

	if (isnull)
		return;
	if (pending_add_events(table, 0))
		waiters_end(id);
	add_watched_id(table, id);
}

/*
 * Return the counts of a queue.  NULL if there are as many as pg_stat_task has: what is counted for
 * more of them in one transaction is lost.
 */
static QueueCounts *
find_counts(const text *queue)
{
	HASHCTL ctl = {.keysize = sizeof(pending.counts.queue),
				   .entrysize = sizeof(QueueCounts),
				   .hcxt = TopTransactionContext};
	int length = statistics_clip(VARDATA_ANY(queue), VARSIZE_ANY_EXHDR(queue));
	char name[TASK_QUEUE_MAX + 1];
	QueueCounts *counts;
	bool found;

	memcpy(name, VARDATA_ANY(queue), length);
	name[length] = '\0';
	if (!pending.counted)
	{
		pending.counted = true;
		pending.counts = (QueueCounts){0};
		strlcpy(pending.counts.queue, name, sizeof(pending.counts.queue));
	}
	if (strcmp(pending.counts.queue, name) == 0)
		return &pending.counts;
	if (pending.others == NULL)
		pending.others =
			hash_create("pg_task counts", 16, &ctl, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	if (hash_get_num_entries(pending.others) > Settings.stat_max)
		return hash_search(pending.others, name, HASH_FIND, NULL);
	counts = hash_search(pending.others, name, HASH_ENTER, &found);
	if (!found)
		counts->planned = counts->stopped = 0;
	return counts;
}

/*
 * Count for pg_stat_task a row that is planned, or that a user stops while it waits.  A retry is
 * counted where it is written.  As hints, counts are kept when a subtransaction is rolled back: no
 * trigger tells which rows went with it.
 */
static void
count_row(Oid table, const TriggerRow *old, const TriggerRow *new, bool planned)
{
	bool counts = planned && trigger_newly_planned(old, new);
	bool stops = old && trigger_has_state(old, "PLAN") && trigger_has_state(new, "STOP");
	QueueCounts *entry;
	bool isnull;
	Datum queue;

	if (!(counts || stops) || (old && owner_acts()) || !pending_add_events(table, 0))
		return;
	queue = trigger_value(new, COLUMN_QUEUE, &isnull);
	entry = isnull ? NULL : find_counts(DatumGetTextPP(queue));
	if (entry == NULL)
		return;
	if (counts)
		entry->planned++;
	else
		entry->stopped++;
}

/* The payload, as json_build_object writes it: at most 255 characters of each text. */
static char *
make_payload(const TriggerRow *row)
{
	static const TaskColumn columns[] = {COLUMN_QUEUE, COLUMN_FLOW, COLUMN_STEP, COLUMN_STATE};
	StringInfoData payload;
	bool isnull;
	int i;

	initStringInfo(&payload);
	appendStringInfo(&payload, "{\"id\" : " INT64_FORMAT,
					 DatumGetInt64(trigger_value(row, COLUMN_ID, &isnull)));
	for (i = 0; i < (int) lengthof(columns); i++)
	{
		Datum value = trigger_value(row, columns[i], &isnull);

		appendStringInfo(&payload, ", \"%s\" : ", task_columns[columns[i]].name);
		if (isnull)
			appendStringInfoString(&payload, "null");
		else
			escape_json(&payload, TextDatumGetCString(
									  DirectFunctionCall2(text_left, value, Int32GetDatum(255))));
	}
	appendStringInfoChar(&payload, '}');
	return payload.data;
}

/*
 * If an UPDATE ends a task whose column "notify" is set, notify the channel at the commit.  A
 * replicated row was notified of elsewhere.
 */
static void
notify_end(const TriggerRow *old, const TriggerRow *new)
{
	bool isnull;
	Datum value = trigger_value(new, COLUMN_NOTIFY, &isnull);
	char *channel;

	if (isnull || !trigger_is_unended(old) || trigger_is_unended(new) ||
		SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA)
		return;
	channel = TextDatumGetCString(value);
	if (channel[0] == '\0' || strlen(channel) > TASK_CHANNEL_MAX ||
		DatumGetFloat8(DirectFunctionCall1(pg_notification_queue_usage, (Datum) 0)) >=
			TASK_NOTIFY_USAGE)
		return;
	Async_Notify(channel, make_payload(new));
}

/*
 * Record what the scheduler must know of a new or changed row, and notify of a task that a user
 * ends.  "old" is NULL for an INSERT.
 */
void
pending_add_row(const TriggerRow *old, const TriggerRow *new)
{
	Oid table = trigger_root_table(new->rel);
	bool planned = trigger_has_state(new, "PLAN");
	bool waits = planned && trigger_is_null(new, COLUMN_WAITS);

	if (old && !owner_acts())
		notify_end(old, new);
	if (Shared == NULL)
		return;
	count_row(table, old, new, planned);
	if (planned && !waits)
		add_watched(table, new);
	if (old && trigger_is_unended(old) && !trigger_is_unended(new))
		pending_add_ended(table, new);
	if (waits)
		add_hint(table, new);
	if (waits && !trigger_is_null(new, COLUMN_ACTIVE))
		pending_add_events(table, SHARED_EXPIRY);
	if (!planned && !trigger_is_null(new, COLUMN_KEEP))
		pending_add_events(table, SHARED_HISTORY);
	if (old && trigger_has_state(old, "WORK") && !owner_acts())
		pending_add_events(table, SHARED_RECONCILE);
}

/* ---- the end of a transaction ---- */

static void
add_counts(const QueueCounts *entry)
{
	StatCounts *counts = statistics_of(entry->queue);

	counts->counters[STAT_PLANNED] += entry->planned;
	counts->counters[STAT_STOPPED] += entry->stopped;
}

/* Add what was counted to the shared counters. */
static void
report_counts(void)
{
	HASH_SEQ_STATUS others;
	QueueCounts *counts;

	if (!pending.counted)
		return;
	add_counts(&pending.counts);
	if (pending.others)
	{
		hash_seq_init(&others, pending.others);
		while ((counts = hash_seq_search(&others)) != NULL)
			add_counts(counts);
	}
	statistics_flush();
}

static void
report_rows(void)
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
	if (!pending.several)
		report_counts();
}

/* Nothing here may raise an error: after a commit, the server would panic. */
void
pending_transaction_ended(XactEvent event)
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	/* before the hints: a row that waits in a queue never is known before the rule of the queue */
	if (event == XACT_EVENT_COMMIT && pending.queues)
		shared_scheduler_wake(MyDatabaseId, SHARED_QUEUES);
	/* without an id nothing was written: ON CONFLICT has dropped the rows */
	if (event == XACT_EVENT_COMMIT && OidIsValid(pending.relid) &&
		TransactionIdIsValid(GetTopTransactionIdIfAny()))
		report_rows();
	pending.relid = pending.ignored = InvalidOid;
	pending.count = pending.events = 0;
	pending.watched.count = 0;
	pending.queues = pending.several = pending.counted = false;
	pending.others = NULL;
}
