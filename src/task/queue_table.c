/*
 * queue_table.c
 *		The queue table <table>_queue, which stands beside the task table: finds, checks, creates
 *		and completes it, and reads its rows.
 *
 * Everything is done as the owner of the task table, who must own the queue table as well.  A
 * relation that cannot be the queue table is left alone, and tasks run without one.
 *
 * The rows are read from the table itself and not by a query, so that no policy, rule or function
 * of anybody runs.  What they mean is decided in scheduler/queue_rules.c; what may be written, in
 * session/queue_trigger.c.
 */
#include "postgres.h"

#include <math.h>

#include "access/relation.h"
#include "access/tableam.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "compat.h"
#include "settings.h"
#include "task/ddl.h"
#include "task/owner.h"
#include "task/queue_table.h"
#include "task/side_table.h"

/* The longest time that is counted (us): what is longer means for ever. */
#define FOR_EVER_US (100 * 365.25 * USECS_PER_DAY)

/* Rows are allocated in arrays of this size, which are doubled. */
#define ROWS_FIRST 64

/* clang-format off */
const ColumnDefinition queue_columns[QUEUE_COLUMNS] = {
	[QUEUE_QUEUE] = {"queue", TEXTOID, "", COLUMN_REQUIRED | COLUMN_NOT_NULL,
		"Name of a queue, or a pattern of LIKE; the exact name counts, or else the longest "
		"pattern"},
	[QUEUE_PAUSED] = {"paused", BOOLOID, "", COLUMN_REQUIRED,
		"true: no task of the queue starts"},
	[QUEUE_MAX] = {"max", INT4OID, "", 0,
		"At most this many tasks of the queue run at once"},
	[QUEUE_RATE] = {"rate", INT4OID, "", 0,
		"At most this many tasks of the queue start within per"},
	[QUEUE_PER] = {"per", INTERVALOID, "", 0,
		"The time for rate"},
	[QUEUE_UNTIL] = {"until", TIMESTAMPTZOID, "", 0,
		"No task of the queue starts before this time"},
	[QUEUE_STRICT] = {"strict", BOOLOID, "", 0,
		"true: tasks start in their order, also when one is retried"},
	[QUEUE_FAIR] = {"fair", BOOLOID, "", 0,
		"true: the queues that match the pattern take turns"},
	[QUEUE_RETRY] = {"retry", INT4OID, "", 0,
		"For tasks of the queue whose column retry is NULL"},
	[QUEUE_DELAY] = {"delay", INTERVALOID, "", 0,
		"For tasks of the queue whose column delay is NULL"},
	[QUEUE_BACKOFF] = {"backoff", FLOAT4OID, "", 0,
		"For tasks of the queue whose column backoff is NULL"},
	[QUEUE_TIMEOUT] = {"timeout", INTERVALOID, "", 0,
		"For tasks of the queue whose column timeout is NULL"},
	[QUEUE_ACTIVE] = {"active", INTERVALOID, "", 0,
		"For tasks of the queue whose column active is NULL"},
	[QUEUE_KEEP] = {"keep", INTERVALOID, "", 0,
		"For tasks of the queue whose column keep is NULL"},
	[QUEUE_BATCH] = {"batch", INT4OID, "", 0,
		"At most this many short tasks of the queue share a transaction; NULL: pg_task.batch"},
	[QUEUE_COMMENT] = {"comment", TEXTOID, "", 0,
		"Yours"},
};
/* clang-format on */

/* The relation with the name of the queue table.  Static, because a callback writes it. */
static struct
{
	Oid relid;
	bool changed; /* it may have, since queue_table_prepare was called last */
} watched;

/* A relation has changed.  InvalidOid stands for all relations. */
void
queue_table_relation_invalidated(Oid relid)
{
	if (relid == InvalidOid || (relid == watched.relid && OidIsValid(relid)))
		watched.changed = true;
}

static void
watch_relation(Oid relid)
{
	watched.relid = relid;
	watched.changed = false;
}

/* May the relation with the name of the queue table have changed since it was prepared? */
bool
queue_table_changed(void)
{
	return watched.changed;
}

static void
create_table(void *arg)
{
	const char *name = arg;
	QueueColumn which;

	ddl_run(columns_create(name, queue_columns, QUEUE_COLUMNS));
	ddl_run(psprintf("COMMENT ON TABLE %s IS"
					 " 'What pg_task keeps to in each queue of the task table'",
					 name));
	for (which = 0; which < QUEUE_COLUMNS; which++)
		ddl_run(column_comment(name, &queue_columns[which]));
}

static void
add_columns(Oid relid, const char *name)
{
	QueueColumn which;

	for (which = 0; which < QUEUE_COLUMNS; which++)
		if (!column_exists(relid, &queue_columns[which]))
		{
			ddl_run(column_add(name, &queue_columns[which]));
			ddl_run(column_comment(name, &queue_columns[which]));
		}
}

/*
 * Create the triggers that the table does not have.  One is for each row, because replication fires
 * no other.
 */
static void
add_triggers(Oid relid, const char *name)
{
	ddl_add_trigger(relid, name, "pg_task_queue_changed",
					"AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW"
					" EXECUTE FUNCTION pg_catalog.pg_task_queue_changed()");
	ddl_add_trigger(relid, name, "pg_task_queue_truncated",
					"AFTER TRUNCATE ON %s FOR EACH STATEMENT"
					" EXECUTE FUNCTION pg_catalog.pg_task_queue_changed()");
}

/* Row security: others than the owner see the rows of queues in which they have tasks. */
static void
add_policy(Oid relid, const char *name)
{
	ddl_add_policy(relid, name, "pg_task_queue_own", "pg_catalog.pg_task_queue_own(queue)");
}

/* Why can this relation not be the queue table of a task table of this owner?  NULL: it can. */
static char *
queue_table_fault(Relation rel, Oid owner)
{
	return side_table_fault(rel, owner, queue_columns, QUEUE_COLUMNS);
}

/*
 * Check an existing relation, and complete it if it is the queue table.  Without the rights of the
 * task table's owner it is not even locked: its own owner may keep it locked.
 */
static void
complete_table(QueueTable *queues, const TaskTable *table)
{
	HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(queues->relid));
	Relation rel;
	Oid owner;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("the queue table has changed")));
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	if (owner != table->owner)
	{
		queues->fault = "It has another owner than the task table.";
		return;
	}
	if (!ConditionalLockRelationOid(queues->relid, AccessShareLock))
		ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
						errmsg("could not read the queue table, because it is locked")));
	rel = try_relation_open(queues->relid, NoLock);
	/* with the lock it keeps its name and its owner */
	if (rel == NULL || rel->rd_rel->relowner != table->owner ||
		get_relname_relid(RelationGetRelationName(rel), get_rel_namespace(table->relid)) !=
			queues->relid)
		ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("the queue table has changed")));
	queues->fault = queues->relid == table->relid ? "It is the task table: its name is too long."
												  : queue_table_fault(rel, table->owner);
	relation_close(rel, NoLock);
	if (queues->fault)
		return;
	add_columns(queues->relid, queues->name);
	add_triggers(queues->relid, queues->name);
	add_policy(queues->relid, queues->name);
}

/*
 * Find the queue table of a task table; create it if it is missing.  Returns what was found; a
 * fault says why tasks run without it.  The caller is in a transaction, has locked the task table
 * and acts as its owner.
 */
QueueTable
queue_table_prepare(const TaskTable *table)
{
	Oid schema = get_rel_namespace(table->relid);
	char *name = makeObjectName(get_rel_name(table->relid), NULL, "queue");
	MemoryContext caller = CurrentMemoryContext;
	QueueTable queues = {0};

	Assert(owner_acts() && GetUserId() == table->owner);
	Assert(compat_relation_locked(table->relid));
	SPI_connect();
	queues.name =
		MemoryContextStrdup(caller, quote_qualified_identifier(get_namespace_name(schema), name));
	queues.relid = get_relname_relid(name, schema);
	/* before the catalogs are read, so that each later change is noticed */
	watch_relation(queues.relid);
	if (OidIsValid(queues.relid))
		complete_table(&queues, table);
	else if (!compat_may_create_in(schema, table->owner))
		queues.fault = "The owner of the task table may not create it.";
	else if ((queues.fault = ddl_try(create_table, unconstify(char *, queues.name))) == NULL)
	{
		CommandCounterIncrement();
		queues.relid = get_relname_relid(name, schema);
		add_triggers(queues.relid, queues.name);
		add_policy(queues.relid, queues.name);
	}
	CommandCounterIncrement();
	/* our own changes do not count */
	AcceptInvalidationMessages();
	watch_relation(queues.relid);
	if (queues.fault)
		queues.fault = MemoryContextStrdup(caller, queues.fault);
	SPI_finish();
	return queues;
}

/* ---- the rows ---- */

/* Is this a pattern?  It is if it has a percent sign.  Anything else is the name of a queue. */
bool
queue_is_pattern(const char *queue)
{
	return strchr(queue, '%') != NULL;
}

/* May LIKE be called with this pattern?  Not if it ends with the escape character. */
bool
queue_pattern_is_valid(const char *pattern)
{
	for (; *pattern; pattern++)
		if (*pattern == '\\' && *++pattern == '\0')
			return false;
	return true;
}

/* A row that is being read, and where its columns are. */
typedef struct RowReader
{
	TupleTableSlot *slot;
	AttrNumber numbers[QUEUE_COLUMNS];
} RowReader;

static Datum
read_column(const RowReader *row, QueueColumn which, bool *isnull)
{
	return slot_getattr(row->slot, row->numbers[which], isnull);
}

/* A number; -1 for NULL, and for what only a disabled trigger lets in. */
static int
read_count(const RowReader *row, QueueColumn which)
{
	bool isnull;
	Datum value = read_column(row, which, &isnull);

	return isnull ? -1 : Max(DatumGetInt32(value), -1);
}

static bool
read_flag(const RowReader *row, QueueColumn which)
{
	bool isnull;
	Datum value = read_column(row, which, &isnull);

	return !isnull && DatumGetBool(value);
}

/* An interval (us), of which months have 30 days; -1 as in read_count. */
static double
read_interval(const RowReader *row, QueueColumn which)
{
	bool isnull;
	Datum value = read_column(row, which, &isnull);
	const Interval *interval;
	double result;

	if (isnull)
		return -1;
	interval = DatumGetIntervalP(value);
	result = (double) interval->time + (double) interval->day * USECS_PER_DAY +
			 (double) interval->month * DAYS_PER_MONTH * USECS_PER_DAY;
	return result < 0 ? -1 : result;
}

/* A time limit: 0 if it is for ever. */
static double
read_limit(const RowReader *row, QueueColumn which)
{
	double limit = read_interval(row, which);

	return limit >= FOR_EVER_US ? 0 : limit;
}

static void
read_defaults(const RowReader *row, TaskDefaults *defaults)
{
	bool isnull;
	double backoff = DatumGetFloat4(read_column(row, QUEUE_BACKOFF, &isnull));
	double active = read_limit(row, QUEUE_ACTIVE);
	double keep = read_interval(row, QUEUE_KEEP);

	defaults->retry = read_count(row, QUEUE_RETRY);
	defaults->batch = Min(read_count(row, QUEUE_BATCH), SETTINGS_BATCH_MAX);
	defaults->delay = (int64) Min(read_interval(row, QUEUE_DELAY), FOR_EVER_US);
	defaults->backoff = !isnull && backoff >= 0 ? backoff : -1;
	defaults->timeout = (int64) read_limit(row, QUEUE_TIMEOUT);
	defaults->active = active < 0 ? -1 : (int64) ceil(active / 1000);
	defaults->keep = keep < 0 ? -1 : keep / USECS_PER_SEC;
}

/* Read a row.  Returns false if it is for no queue that can be. */
static bool
read_row(const RowReader *row, QueueRule *rule)
{
	bool isnull;
	Datum queue = read_column(row, QUEUE_QUEUE, &isnull);
	TimestampTz until;

	if (isnull)
		return false;
	memset(rule, 0, sizeof(QueueRule));
	rule->queue = TextDatumGetCString(queue);
	rule->pattern = queue_is_pattern(rule->queue);
	if (strlen(rule->queue) > TASK_QUEUE_MAX ||
		(rule->pattern && !queue_pattern_is_valid(rule->queue)))
		return false;
	rule->paused = read_flag(row, QUEUE_PAUSED);
	rule->max = read_count(row, QUEUE_MAX);
	rule->rate = read_count(row, QUEUE_RATE);
	rule->per = (int64) Min(read_interval(row, QUEUE_PER), FOR_EVER_US);
	if (rule->per < 0)
		rule->per = USECS_PER_SEC;
	until = DatumGetTimestampTz(read_column(row, QUEUE_UNTIL, &isnull));
	rule->until = isnull ? DT_NOBEGIN : until;
	rule->strict = read_flag(row, QUEUE_STRICT);
	rule->fair = read_flag(row, QUEUE_FAIR);
	read_defaults(row, &rule->defaults);
	rule->defaults.strict = rule->strict;
	return true;
}

/* Find the columns.  False: one is missing, and the table will be prepared again. */
static bool
find_columns(Relation rel, RowReader *row)
{
	QueueColumn which;

	for (which = 0; which < QUEUE_COLUMNS; which++)
	{
		row->numbers[which] = get_attnum(RelationGetRelid(rel), queue_columns[which].name);
		if (row->numbers[which] <= 0)
			return false;
	}
	return true;
}

/* Read the rows of the table, which is open and locked. */
static int
read_rows(Relation rel, RowReader *row, QueueRule **rules)
{
	TableScanDesc scan = COMPAT_BEGINSCAN(rel, GetActiveSnapshot());
	int size = ROWS_FIRST;
	int count = 0;

	*rules = palloc(size * sizeof(QueueRule));
	row->slot = table_slot_create(rel, NULL);
	while (count < QUEUE_ROWS_MAX && table_scan_getnextslot(scan, ForwardScanDirection, row->slot))
	{
		CHECK_FOR_INTERRUPTS();
		if (count == size)
		{
			size *= 2;
			*rules = repalloc_huge(*rules, size * sizeof(QueueRule));
		}
		count += read_row(row, &(*rules)[count]);
	}
	ExecDropSingleTupleTableSlot(row->slot);
	table_endscan(scan);
	return count;
}

/*
 * Read all rows, in no order, into the memory context "where".  Returns false if the table has
 * changed, or is locked by somebody.  Bounded by QUEUE_ROWS_MAX and the size of the table.  The
 * caller is in a transaction with a snapshot, and acts as the owner of the task table.
 */
bool
queue_table_read(Oid relid, MemoryContext where, QueueRows *rows)
{
	MemoryContext caller;
	Relation rel;
	RowReader row;
	bool usable;

	Assert(owner_acts());
	if (!ConditionalLockRelationOid(relid, AccessShareLock))
		return false;
	/* the lock has brought the messages about changes */
	rel = queue_table_changed() ? NULL : try_relation_open(relid, NoLock);
	if (rel == NULL)
		return false;
	usable = queue_table_fault(rel, GetUserId()) == NULL && find_columns(rel, &row);
	caller = MemoryContextSwitchTo(where);
	if (usable)
	{
		rows->pages = RelationGetNumberOfBlocks(rel);
		rows->count = read_rows(rel, &row, &rows->rules);
	}
	MemoryContextSwitchTo(caller);
	relation_close(rel, NoLock);
	return usable;
}

/* Is the rule for this queue, and does it win over the other one?  NULL: there is no other. */
static bool
is_better_rule(const QueueRule *rule, const QueueRule *other, const char *queue)
{
	int difference;

	if (!rule->pattern)
		return strcmp(rule->queue, queue) == 0;
	if (!DatumGetBool(DirectFunctionCall2Coll(textlike, C_COLLATION_OID, CStringGetTextDatum(queue),
											  CStringGetTextDatum(rule->queue))))
		return false;
	if (other == NULL || !other->pattern)
		return other == NULL;
	difference = (int) strlen(rule->queue) - (int) strlen(other->queue);
	return difference > 0 || (difference == 0 && strcmp(rule->queue, other->queue) < 0);
}

/* Find the rule of a queue in a table that is open and locked. */
static bool
find_rule(Relation rel, RowReader *row, const char *queue, QueueRule *rule)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context =
		AllocSetContextCreate(caller, "pg_task rule of a queue", ALLOCSET_SMALL_SIZES);
	TableScanDesc scan = COMPAT_BEGINSCAN(rel, GetActiveSnapshot());
	bool found = false;
	QueueRule next;

	row->slot = table_slot_create(rel, NULL);
	MemoryContextSwitchTo(context);
	while (table_scan_getnextslot(scan, ForwardScanDirection, row->slot))
	{
		CHECK_FOR_INTERRUPTS();
		if (read_row(row, &next) && is_better_rule(&next, found ? rule : NULL, queue))
		{
			*rule = next;
			rule->queue = MemoryContextStrdup(caller, next.queue);
			found = true;
		}
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(caller);
	ExecDropSingleTupleTableSlot(row->slot);
	table_endscan(scan);
	MemoryContextDelete(context);
	return found;
}

/*
 * For a user's session: read the rule of a queue, as queue_rules_find has it in a scheduler.
 * Returns false if there is none, or if the table is not that of this owner.  Executes no code of
 * anybody, so the rights of the caller do not matter: the caller decides what he is told.  Bounded
 * by the size of the table.
 */
bool
queue_table_find(Oid relid, Oid owner, const char *queue, QueueRule *rule)
{
	Relation rel = OidIsValid(relid) ? try_relation_open(relid, AccessShareLock) : NULL;
	RowReader row;
	bool found;

	if (rel == NULL)
		return false;
	found = queue_table_fault(rel, owner) == NULL && find_columns(rel, &row) &&
			find_rule(rel, &row, queue, rule);
	relation_close(rel, AccessShareLock);
	return found;
}
