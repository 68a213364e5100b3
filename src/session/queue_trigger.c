/*
 * queue_trigger.c
 *		The trigger on the queue table, and the function of its row security policy.
 *
 * The trigger checks what is written, and has the scheduler read the table again after the commit.
 * Anybody may put it on any table: each column is found by its name and type.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "session/pending.h"
#include "session/served.h"
#include "session/table_access.h"
#include "session/trigger_checks.h"
#include "settings.h"
#include "shared/shared.h"
#include "task/queue_table.h"

PGDLLEXPORT Datum pg_task_queue_changed(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_queue_own(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_task_queue_changed);
PG_FUNCTION_INFO_V1(pg_task_queue_own);

/* ---- the checks ---- */

/* A row of the queue table that is written. */
typedef struct QueueRow
{
	Relation rel;
	HeapTuple tuple;
} QueueRow;

/* The value of a column.  Raises an error if this is not the column of a queue table. */
static Datum
row_value(const QueueRow *row, QueueColumn which, bool *isnull)
{
	const ColumnDefinition *column = &queue_columns[which];
	TupleDesc desc = RelationGetDescr(row->rel);
	int number = SPI_fnumber(desc, column->name);

	if (number < 1 || TupleDescAttr(desc, number - 1)->atttypid != column->type)
		ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
						errmsg("the table of this trigger is not a queue table"),
						errdetail("It has no column \"%s\" of type %s.", column->name,
								  format_type_be(column->type))));
	return SPI_getbinval(row->tuple, desc, number, isnull);
}

/* The queue of a row, for messages: it may be very long. */
static char *
queue_of_row(const QueueRow *row)
{
	bool isnull;
	Datum queue = row_value(row, QUEUE_QUEUE, &isnull);
	char *name = isnull ? pstrdup("") : TextDatumGetCString(queue);

	name[pg_mbcliplen(name, (int) strlen(name), TASK_QUEUE_MAX)] = '\0';
	return name;
}

/* Raise an error: the value of this column breaks the rule. */
static void
reject_value(const QueueRow *row, QueueColumn which, const char *rule)
{
	const char *name = queue_columns[which].name;

	ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					errmsg("\"%s\" of a queue must be %s", name, rule),
					errdetail("The row is for queue \"%s\".", queue_of_row(row)),
					errtablecol(row->rel, SPI_fnumber(RelationGetDescr(row->rel), name))));
}

/* Check that a number is NULL, or zero or more. */
static void
check_count(const QueueRow *row, QueueColumn which)
{
	bool isnull;
	Datum value = row_value(row, which, &isnull);

	if (!isnull && DatumGetInt32(value) < 0)
		reject_value(row, which, "zero or more");
}

/* Check that an interval is NULL, or greater than zero, or (if allowed) zero. */
static void
check_interval(const QueueRow *row, QueueColumn which, bool zero_allowed)
{
	bool isnull;
	Datum value = row_value(row, which, &isnull);
	const char *rule = isnull ? NULL : trigger_interval_rule(value, zero_allowed);

	if (rule)
		reject_value(row, which, rule);
}

/* Check the name or pattern. */
static void
check_queue(const QueueRow *row)
{
	bool isnull;
	Datum value = row_value(row, QUEUE_QUEUE, &isnull);
	char *queue;

	if (isnull)
		reject_value(row, QUEUE_QUEUE, "something, not NULL");
	if (toast_raw_datum_size(value) - VARHDRSZ > TASK_QUEUE_MAX)
		reject_value(row, QUEUE_QUEUE, "at most " CppAsString2(TASK_QUEUE_MAX) " bytes long");
	queue = TextDatumGetCString(value);
	if (queue_is_pattern(queue) && !queue_pattern_is_valid(queue))
		reject_value(row, QUEUE_QUEUE, "a pattern that does not end with an escape character");
}

static void
check_batch(const QueueRow *row)
{
	bool isnull;
	int batch = DatumGetInt32(row_value(row, QUEUE_BATCH, &isnull));

	if (!isnull && (batch < 1 || batch > SETTINGS_BATCH_MAX))
		reject_value(row, QUEUE_BATCH, psprintf("1 to %d", SETTINGS_BATCH_MAX));
}

/* Check the values of a new or changed row. */
static void
check_row(const QueueRow *row)
{
	bool isnull;
	Datum backoff = row_value(row, QUEUE_BACKOFF, &isnull);

	check_queue(row);
	check_count(row, QUEUE_MAX);
	check_count(row, QUEUE_RATE);
	check_interval(row, QUEUE_PER, false);
	check_count(row, QUEUE_RETRY);
	check_interval(row, QUEUE_DELAY, true);
	if (!isnull && !(DatumGetFloat4(backoff) >= 0))
		reject_value(row, QUEUE_BACKOFF, "zero or more");
	check_interval(row, QUEUE_TIMEOUT, false);
	check_interval(row, QUEUE_ACTIVE, false);
	check_interval(row, QUEUE_KEEP, true);
	check_batch(row);
}

/*
 * Trigger, AFTER INSERT OR UPDATE OR DELETE, FOR EACH ROW, or AFTER TRUNCATE.  Checks the row, and
 * has the scheduler read the table again when the transaction has committed.
 */
Datum
pg_task_queue_changed(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	QueueRow row;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(data->tg_event) ||
		(!TRIGGER_FIRED_FOR_ROW(data->tg_event) && !TRIGGER_FIRED_BY_TRUNCATE(data->tg_event)))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("pg_task_queue_changed must be called AFTER INSERT OR UPDATE OR"
							   " DELETE, FOR EACH ROW, or AFTER TRUNCATE")));
	row.rel = data->tg_relation;
	row.tuple = TRIGGER_FIRED_BY_UPDATE(data->tg_event) ? data->tg_newtuple : data->tg_trigtuple;
	if (TRIGGER_FIRED_BY_INSERT(data->tg_event) || TRIGGER_FIRED_BY_UPDATE(data->tg_event))
		check_row(&row);
	if (Shared)
		pending_add_queues(RelationGetRelid(row.rel));
	return PointerGetDatum(NULL);
}

/* ---- row security ---- */

/*
 * pg_task_queue_own(queue): has the current user, as far as he may see tasks, one in state PLAN or
 * WORK in a queue that this name or pattern is for?  Used by the row security policy of the queue
 * table.  The table of tasks is not part of the policy, or it could not be dropped.
 */
Datum
pg_task_queue_own(PG_FUNCTION_ARGS)
{
	const char *pattern = text_to_cstring(PG_GETARG_TEXT_PP(0));
	const char *matches = queue_is_pattern(pattern) ? "~~" : "=";
	Oid relid = served_known();
	TableAccess access;
	char *rows;
	char *sql;
	bool own;

	/* a pattern that LIKE would refuse, in one row, is no reason to show no row */
	if (!OidIsValid(relid) || get_rel_name(relid) == NULL ||
		pg_class_aclcheck(relid, GetUserId(), ACL_SELECT) != ACLCHECK_OK ||
		(queue_is_pattern(pattern) && !queue_pattern_is_valid(pattern)))
		PG_RETURN_BOOL(false);
	access = table_access_open(ACCESS_ROWS);
	rows = psprintf("SELECT FROM %s AS t"
					" WHERE t.queue OPERATOR(pg_catalog.%s) $1 COLLATE pg_catalog.\"C\" AND t.state"
					" OPERATOR(pg_catalog.=)",
					access.rows, matches);
	/* each condition on the state is that of an index */
	sql = psprintf("SELECT WHERE EXISTS (%s 'PLAN'::pg_catalog.text"
				   "                     AND t.waits IS NULL)"
				   " OR EXISTS (%s 'WORK'::pg_catalog.text)",
				   rows, rows);
	SPI_connect();
	own = table_access_read(&access, sql, table_access_arguments(fcinfo), true) > 0;
	SPI_finish();
	PG_RETURN_BOOL(own);
}
