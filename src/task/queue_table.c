/*
 * queue_table.c
 *		The rows of the queue table <table>_queue, which stands beside the task table.
 *
 * They are read by one statement, as the owner of the tables, to whom no policy applies.  What they
 * mean for a queue is in queue_rules.c; what may be written, in the constraints of the table.
 */
#include "postgres.h"

#include <math.h>

#include "access/relation.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "task/owner.h"
#include "task/owner_code.h"
#include "task/queue_table.h"
#include "task/statement.h"
#include "task/table.h"

/* The longest time that is counted (us): what is longer means for ever. */
#define FOR_EVER_US (100 * 365.25 * USECS_PER_DAY)

/* In the order of QueueColumn. */
#define COLUMNS_SQL                                                                                \
	"SELECT q.queue, q.paused, q.max, q.rate, q.per, q.until, q.strict, q.fair, q.retry, q.delay," \
	" q.backoff, q.timeout, q.active, q.keep, q.batch, q.total, q.taker"

/* clang-format off */
/* Of the rows for a queue, the one that counts first at the beginning, what each column is: as
 * queue_rules.c has it. */
#define EXPLAIN_SQL \
	"SELECT DISTINCT ON (c.n) c.name, c.value, q.queue" \
	"  FROM unnest($1) WITH ORDINALITY AS m (queue, n)" \
	"  JOIN ONLY %s AS q ON q.queue = m.queue" \
	" CROSS JOIN LATERAL (SELECT position('%%' IN q.queue) > 0 AS is_pattern) AS p" \
	" CROSS JOIN LATERAL (VALUES" \
	"       (1, 'paused', q.paused::text), (2, 'until', q.until::text)," \
	"       (3, 'max', q.max::text), (4, 'total', CASE WHEN p.is_pattern THEN q.total::text END)," \
	"       (5, 'rate', q.rate::text)," \
	"       (6, 'per', CASE WHEN q.rate IS NOT NULL THEN coalesce(q.per, '1 s')::text END)," \
	"       (7, 'strict', q.strict::text)," \
	"       (8, 'fair', CASE WHEN p.is_pattern THEN q.fair::text END)," \
	"       (9, 'retry', q.retry::text), (10, 'delay', q.delay::text)," \
	"       (11, 'backoff', q.backoff::text), (12, 'timeout', q.timeout::text)," \
	"       (13, 'active', q.active::text), (14, 'keep', q.keep::text)," \
	"       (15, 'batch', q.batch::text), (16, 'taker', q.taker::text)) AS c (n, name, value)" \
	" WHERE c.value IS NOT NULL ORDER BY c.n, m.n"
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

/* The same for a limit, of which -1 says that there is none. */
static int
read_limit(uint64 row, QueueColumn which)
{
	bool isnull;
	Datum value = read_column(row, which, &isnull);

	return isnull ? -1 : DatumGetInt32(value) < 0 ? RULE_UNLIMITED : DatumGetInt32(value);
}

/* True or false; -1 for NULL. */
static int8
read_flag(uint64 row, QueueColumn which)
{
	bool isnull;
	Datum value = read_column(row, which, &isnull);

	return isnull ? -1 : DatumGetBool(value);
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

/* The role whose sessions take tasks; 0 if there is no name. */
static int64
read_taker(const char *name)
{
	Oid role;

	if (name[0] == '\0')
		return 0;
	role = get_role_oid(name, true);
	return OidIsValid(role) ? (int64) role : RULE_NO_ROLE;
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
	rule->paused = read_flag(row, QUEUE_PAUSED);
	rule->strict = read_flag(row, QUEUE_STRICT);
	rule->fair = read_flag(row, QUEUE_FAIR);
	rule->max = read_limit(row, QUEUE_MAX);
	rule->total = read_limit(row, QUEUE_TOTAL);
	rule->rate = read_limit(row, QUEUE_RATE);
	rule->per = (int64) Min(read_interval(row, QUEUE_PER), FOR_EVER_US);
	value = read_column(row, QUEUE_TAKER, &isnull);
	rule->taker = isnull ? -1 : read_taker(NameStr(*DatumGetName(value)));
	value = read_column(row, QUEUE_UNTIL, &isnull);
	rule->until = isnull ? RULE_NO_UNTIL : DatumGetTimestampTz(value);

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

/* Read the rows of the last result, but those for no queue, into the current memory context. */
static int
read_rows(uint64 count, QueueRule **rows)
{
	int usable = 0;
	uint64 i;

	check_result();
	*rows = palloc_extended((count + 1) * sizeof(QueueRule), MCXT_ALLOC_HUGE);
	for (i = 0; i < count; i++)
		usable += read_row(i, &(*rows)[usable]);
	return usable;
}

/*
 * Read the rows, in no order, into the memory context "where".  Returns their number, which is
 * QUEUE_ROWS_MAX at most.  The caller is in a transaction of the scheduler, and has locked the
 * table.
 */
int
queue_rules_read(const TaskTable *queues, MemoryContext where, QueueRule **rows)
{
	MemoryContext caller;
	StatementArgs args;
	uint64 found;
	int count;

	statement_begin(&args);
	found = statement_execute(&read_rules, queues, &args);
	caller = MemoryContextSwitchTo(where);
	count = read_rows(found, rows);
	MemoryContextSwitchTo(caller);
	statement_end();
	return count;
}

/*
 * For a user's session, connected to SPI: execute a query on the table beside this task table,
 * which stands for %s in it.  Its argument, if it has one, is an array of texts.  The table is read
 * with the rights of its owner, and no code of the owner's runs: the caller of this function
 * decides what the user is told.  Returns false if there is no such table.
 */
static bool
read_as_owner(Oid task, Oid owner, const char *query, ArrayType *argument)
{
	const char *fault;
	Relation rel = side_table_open(SIDE_QUEUE, task, owner, true, &fault);
	Oid type = TEXTARRAYOID;
	Datum value = PointerGetDatum(argument);
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
		if (SPI_execute_with_args(sql, argument ? 1 : 0, &type, &value, NULL, true,
								  QUEUE_ROWS_MAX) != SPI_OK_SELECT)
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
 * For a user's session: read the rules from the table beside this task table, as a scheduler has
 * them, into the current memory context.  Without such a table there is none.  Bounded by the size
 * of the table.
 */
QueueRules *
queue_rules_load(Oid task, Oid owner)
{
	MemoryContext caller = CurrentMemoryContext;
	QueueRule *rows = NULL;
	int count = 0;
	bool found;

	SPI_connect();
	found = read_as_owner(task, owner, COLUMNS_SQL " FROM ONLY %s AS q", NULL);
	MemoryContextSwitchTo(caller);
	if (found)
		count = read_rows(SPI_processed, &rows);
	SPI_finish();
	return queue_rules_build(caller, rows, count);
}

/*
 * For a user's session, connected to SPI: of each column that a row for this queue says, the name,
 * the value, and the row that says it, as three texts.  They are in the result of SPI, whose number
 * of rows is returned.
 */
uint64
queue_rules_explain(Oid task, Oid owner, const char *queue)
{
	int count;
	const QueueRule **rows = queue_rules_match(queue_rules_load(task, owner), queue, &count);
	Datum *names = palloc((count + 1) * sizeof(Datum));
	int i;

	for (i = 0; i < count; i++)
		names[i] = CStringGetTextDatum(rows[i]->queue);
	return read_as_owner(task, owner, EXPLAIN_SQL,
						 construct_array(names, count, TEXTOID, -1, false, TYPALIGN_INT))
			   ? SPI_processed
			   : 0;
}
