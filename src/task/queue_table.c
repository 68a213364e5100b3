/*
 * queue_table.c
 *		The rows of the queue table <table>_queue, which stands beside the task table.
 *
 * They are read by one statement, as the owner of the tables, to whom no policy applies.  What they
 * mean is decided in scheduler/queues.c; what may be written, by the constraints of the table.
 */
#include "postgres.h"

#include <math.h>

#include "access/relation.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "settings.h"
#include "task/owner.h"
#include "task/owner_code.h"
#include "task/queue_table.h"
#include "task/relation.h"
#include "task/statement.h"
#include "task/table.h"

/* The longest time that is counted (us): what is longer means for ever. */
#define FOR_EVER_US (100 * 365.25 * USECS_PER_DAY)

/* In the order of QueueColumn. */
#define COLUMNS_SQL                                                                                \
	"SELECT q.queue, q.paused, q.max, q.rate, q.per, q.until, q.strict, q.fair, q.retry, q.delay," \
	" q.backoff, q.timeout, q.active, q.keep, q.batch"

/* clang-format off */
/* LIKE raises an error for a pattern that ends with an escape character. */
#define RULE_OF_QUEUE \
	" WHERE CASE WHEN position('%%' IN q.queue) = 0 THEN q.queue = $1" \
	"       WHEN octet_length(q.queue) <= " CppAsString2(TASK_QUEUE_MAX) \
	"            AND (length(q.queue) - length(rtrim(q.queue, chr(92)))) %% 2 = 0" \
	"       THEN $1 LIKE q.queue COLLATE \"C\" END" \
	" ORDER BY position('%%' IN q.queue) > 0, octet_length(q.queue) DESC, q.queue COLLATE \"C\"" \
	" LIMIT 1"

/* Of queues, those that their rule pauses: see queue_rule_pauses. */
#define PAUSED_QUEUES \
	"WITH r AS MATERIALIZED (" \
	"SELECT q.queue COLLATE \"C\" AS queue, position('%%' IN q.queue) > 0 AS is_pattern," \
	"       coalesce(q.paused OR q.max = 0 OR q.rate = 0 OR q.until > clock_timestamp(), false)" \
	"           AS pauses" \
	"  FROM ONLY %s AS q" \
	" WHERE octet_length(q.queue) <= " CppAsString2(TASK_QUEUE_MAX) \
	"   AND (position('%%' IN q.queue) = 0" \
	"        OR (length(q.queue) - length(rtrim(q.queue, chr(92)))) %% 2 = 0))," \
	" p AS MATERIALIZED (SELECT r.queue, r.pauses FROM r WHERE r.is_pattern)" \
	" SELECT array_agg(n.queue)" \
	"   FROM unnest($1) AS n (queue) LEFT JOIN r AS e ON e.queue = n.queue AND NOT e.is_pattern" \
	"  WHERE EXISTS (SELECT FROM r WHERE r.pauses)" \
	"    AND coalesce(e.pauses, (SELECT p.pauses FROM p WHERE n.queue LIKE p.queue" \
	"                             ORDER BY octet_length(p.queue) DESC, p.queue LIMIT 1))"
/* clang-format on */

static const Statement read_rules = {.sql = COLUMNS_SQL
									 " FROM {rows} AS q LIMIT " CppAsString2(QUEUE_ROWS_MAX)};

/* Can a queue have this name, or match this pattern?  LIKE ends with an error for some patterns. */
bool
queue_is_valid(const char *queue)
{
	bool pattern = queue_is_pattern(queue);

	if (strlen(queue) > TASK_QUEUE_MAX)
		return false;
	for (; pattern && *queue; queue++)
		if (*queue == '\\' && *++queue == '\0')
			return false;
	return true;
}

/* A value of a row of the last result.  Columns have their types: see check_result. */
static Datum
read_column(uint64 row, QueueColumn which, bool *isnull)
{
	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, (int) which + 1, isnull);
}

/* A trigger of the owner's may have changed the table since it was checked. */
static void
check_result(void)
{
	int i;

	for (i = 0; i < SPI_tuptable->tupdesc->natts; i++)
		if (SPI_gettypeid(SPI_tuptable->tupdesc, i + 1) != queue_columns[i].type)
			ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("the queue table has changed")));
}

/* A number; -1 for NULL, and for what no constraint keeps out. */
static int
read_count(uint64 row, QueueColumn which)
{
	bool isnull;
	Datum value = read_column(row, which, &isnull);

	return isnull ? -1 : Max(DatumGetInt32(value), -1);
}

/* An interval (us), of which months have 30 days; -1 as in read_count. */
static double
read_interval(uint64 row, QueueColumn which)
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

/* Read a row.  Returns false if it is for no queue that can be. */
static bool
read_row(uint64 row, QueueRule *rule)
{
	TaskDefaults *defaults = &rule->defaults;
	double active = read_interval(row, QUEUE_ACTIVE);
	double keep = read_interval(row, QUEUE_KEEP);
	double timeout = read_interval(row, QUEUE_TIMEOUT);
	bool isnull;
	Datum queue = read_column(row, QUEUE_QUEUE, &isnull);
	Datum value;

	if (isnull)
		return false;
	memset(rule, 0, sizeof(QueueRule));
	rule->queue = TextDatumGetCString(queue);
	rule->pattern = queue_is_pattern(rule->queue);
	if (!queue_is_valid(rule->queue))
		return false;
	value = read_column(row, QUEUE_PAUSED, &isnull);
	rule->paused = !isnull && DatumGetBool(value);
	rule->max = read_count(row, QUEUE_MAX);
	rule->rate = read_count(row, QUEUE_RATE);
	rule->per = (int64) Min(read_interval(row, QUEUE_PER), FOR_EVER_US);
	if (rule->per < 0)
		rule->per = USECS_PER_SEC;
	value = read_column(row, QUEUE_UNTIL, &isnull);
	rule->until = isnull ? DT_NOBEGIN : DatumGetTimestampTz(value);
	value = read_column(row, QUEUE_STRICT, &isnull);
	rule->strict = !isnull && DatumGetBool(value);
	value = read_column(row, QUEUE_FAIR, &isnull);
	rule->fair = !isnull && DatumGetBool(value);

	defaults->strict = rule->strict;
	defaults->retry = read_count(row, QUEUE_RETRY);
	defaults->batch = Min(read_count(row, QUEUE_BATCH), SETTINGS_BATCH_MAX);
	defaults->delay = (int64) Min(read_interval(row, QUEUE_DELAY), FOR_EVER_US);
	value = read_column(row, QUEUE_BACKOFF, &isnull);
	defaults->backoff = !isnull && DatumGetFloat4(value) >= 0 ? DatumGetFloat4(value) : -1;
	/* 0 is for ever */
	defaults->timeout = timeout >= FOR_EVER_US ? 0 : (int64) timeout;
	defaults->active = active >= FOR_EVER_US ? 0 : active < 0 ? -1 : (int64) ceil(active / 1000);
	defaults->keep = keep < 0 ? -1 : keep / USECS_PER_SEC;
	return true;
}

/*
 * Read the rules, in no order, into the memory context "where".  Returns their number, which is
 * QUEUE_ROWS_MAX at most.  The caller is in a transaction of the scheduler, and has locked the
 * table.
 */
int
queue_rules_read(const TaskTable *queues, MemoryContext where, QueueRule **rules)
{
	MemoryContext caller;
	StatementArgs args;
	int count = 0;
	uint64 rows;
	uint64 i;

	statement_begin(&args);
	rows = statement_execute(&read_rules, queues, &args);
	check_result();
	caller = MemoryContextSwitchTo(where);
	*rules = palloc_extended((rows + 1) * sizeof(QueueRule), MCXT_ALLOC_HUGE);
	for (i = 0; i < rows; i++)
		count += read_row(i, &(*rules)[count]);
	MemoryContextSwitchTo(caller);
	statement_end();
	return count;
}

/*
 * For a user's session, connected to SPI: execute a query on the table beside this task table,
 * which stands for %s in it.  The table is read with the rights of its owner, and none of his code
 * runs: the caller of this function decides what the user is told.  Returns false if there is no
 * such table.
 */
static bool
read_as_owner(Oid task, Oid owner, const char *query, Oid type, Datum argument)
{
	const char *fault;
	Relation rel = side_table_open(SIDE_QUEUE, task, owner, true, &fault);
	OwnerScope scope;
	NamedTable outer;
	char *sql;
	int barred;

	if (rel == NULL)
		return false;
	sql = psprintf(query, quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)),
													 RelationGetRelationName(rel)));
	outer = named_table_expect((NamedTable){.text = sql, .relid = RelationGetRelid(rel)});
	barred = owner_code_bar(ERRCODE_INSUFFICIENT_PRIVILEGE);
	PG_TRY();
	{
		owner_restrict(owner, &scope);
		if (SPI_execute_with_args(sql, 1, &type, &argument, NULL, true, 0) != SPI_OK_SELECT)
			elog(ERROR, "could not read the queue table");
		owner_restrict_end(&scope);
	}
	PG_FINALLY();
	{
		(void) owner_code_bar(barred);
		(void) named_table_expect(outer);
	}
	PG_END_TRY();
	relation_close(rel, NoLock);
	return true;
}

/*
 * Read the rule of a queue, as queue_rules_find has it in a scheduler: that of its name, or else of
 * the longest pattern.  Returns false if there is none.  Bounded by the size of the table.
 */
bool
queue_rule_find(Oid task, Oid owner, const char *queue, QueueRule *rule)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum name = CStringGetTextDatum(queue);
	bool found = false;

	SPI_connect();
	if (read_as_owner(task, owner, COLUMNS_SQL " FROM ONLY %s AS q" RULE_OF_QUEUE, TEXTOID, name))
	{
		check_result();
		found = SPI_processed > 0 && read_row(0, rule);
	}
	if (found)
		rule->queue = MemoryContextStrdup(caller, rule->queue);
	SPI_finish();
	return found;
}

/*
 * Of these queues, an array of text, return those that are paused now, by the rules that
 * queue_rule_find finds; NULL: none is.
 */
Datum
queue_rules_paused(Oid task, Oid owner, Datum queues, bool *isnull)
{
	Datum paused = (Datum) 0;

	*isnull = true;
	SPI_connect();
	if (read_as_owner(task, owner, PAUSED_QUEUES, TEXTARRAYOID, queues))
		paused = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, isnull);
	if (!*isnull)
		paused = SPI_datumTransfer(paused, false, -1);
	SPI_finish();
	return paused;
}
