/*
 * reports.c
 *		The language of functions that are one statement on the task table of this database: its
 *		name is a setting, and whose rights they use depends on the caller (table_access.c), so
 *		plain SQL cannot.
 *
 * The text of such a function, in sql/, is one query; or an UPDATE of "state", "failed" or "hold",
 * which returns the number of rows; or an INSERT of one row, which returns its id.  Only superusers
 * may create functions in the language.  Before the text is executed, these names in it are
 * replaced:
 *
 *		{t.max}		the limit of the group of row t, {r.max} of r: see rows_sql.h
 *		{rows}		the task table, as far as the caller may see it
 *		{figures}	the same; all of it for members of pg_read_all_stats
 *		{readable}	whether the row t in {figures} is for the caller, and not its figures alone
 *		{sees_all}	whether no row is hidden from the caller
 *		{relid}		the oid of the task table
 *		{recent}	the range of the last ids, for BETWEEN
 *		{activity}	what runs of this table, as the caller may see it, as jsonb
 *		{error}		the last error of the scheduler, as the caller may see it
 *		{service}	why no task of this database runs; NULL: it is served
 *		{table}		the task table t of an UPDATE
 *		{condition}	ends the WHERE of that
 *		{into}		the task table of an INSERT
 *		{once}		the columns that one more run of a schedule copies, each after a comma
 *		{own}		may the caller plan tasks for the role of row t
 *
 * No backslash may be in it, because standard_conforming_strings may be off.
 *
 * This file knows no statement on the task table.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "executor/tstoreReceiver.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "compat.h"
#include "session/notices.h"
#include "session/result_set.h"
#include "session/table_access.h"
#include "session/take.h"
#include "session/trigger_row.h"
#include "shared/shared.h"
#include "shared/task.h"
#include "task/home.h"
#include "task/queue_table.h"
#include "task/relation.h"
#include "task/repeat.h"
#include "task/roles.h"
#include "task/rows_sql.h"
#include "task/table.h"

COMPAT_FUNCTION(pg_task_report);
COMPAT_FUNCTION(pg_task_returns_json);
COMPAT_FUNCTION(pg_task_queue_facts);
COMPAT_FUNCTION(pg_task_side_fault);
COMPAT_FUNCTION(pg_task_following);

/*
 * So many of the last ids are {recent}: a role to which row security shows few of many rows would
 * pass over all others to find the last ones of its own.
 */
#define LAST_IDS 10000

/* How often a schedule is looked for again that is not there: its runs may end all the time. */
#define FIND_TRIES 5

/* What runs of this table, and the error of its scheduler, as literals of SQL. */
#define ACTIVITY_SQL                                                           \
	"SELECT pg_catalog.quote_literal(coalesce(pg_catalog.jsonb_agg(a), '[]'))" \
	"  FROM pg_catalog.pg_task_activity() AS a"                                \
	" WHERE a.relid OPERATOR(pg_catalog.=) %u::pg_catalog.oid"                 \
	"   AND a.database OPERATOR(pg_catalog.=) pg_catalog.current_database()"
#define ERROR_SQL                                      \
	"SELECT pg_catalog.quote_nullable((SELECT s.error" \
	"  FROM pg_catalog.pg_stat_task_scheduler() AS s"  \
	" WHERE s.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()))"

/* Read such a literal, before the query, which may be executed with other rights. */
static char *
read_literal(const char *sql)
{
	if (SPI_execute(sql, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read what pg_task does");
	return SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
}

/*
 * The query of a function, with its names replaced, but none in what takes their place: users
 * choose that.  Connected to SPI.
 */
static char *
fill_names(const TableAccess *access, const char *sql)
{
	const char *names[] = {"{rows}",	"{figures}", "{readable}",	"{sees_all}",
						   "{relid}",	"{recent}",	 "{activity}",	"{error}",
						   "{service}", "{table}",	 "{condition}", "{into}",
						   "{own}",		"{t.max}",	 "{r.max}",		"{once}"};
	const char *values[] = {access->rows,
							access->rows,
							access->readable,
							access->sees_all ? "true" : "false",
							psprintf("%u", access->relid),
							NULL,
							NULL,
							NULL,
							NULL,
							access->table,
							access->condition,
							access->name,
							NULL,
							GROUP_MAX("t"),
							GROUP_MAX("r"),
							NULL};
	StringInfoData result;
	int64 low;
	int64 high;
	int i;

	/* the others cost nothing */
	if (strstr(sql, names[5]))
	{
		trigger_recent_ids(access->relid, LAST_IDS, &low, &high);
		values[5] = psprintf("'" INT64_FORMAT "' AND '" INT64_FORMAT "'", low, high);
	}
	if (strstr(sql, names[6]))
		values[6] = read_literal(psprintf(ACTIVITY_SQL, access->relid));
	if (strstr(sql, names[7]))
		values[7] = read_literal(ERROR_SQL);
	if (strstr(sql, names[8]))
	{
		const char *service = table_access_service();

		if (service == NULL && home_find(access->relid) == HOME_AWAY)
			service = "it is held back, because its table comes from another database or server:"
					  " see pg_task_release";
		else if (service == NULL && shared_lacks_standby())
			service = "too few synchronous standbys are connected: see pg_task.require_standby";
		else if (service == NULL && shared_database_found(MyDatabaseId).absent)
			service = "no scheduler has looked at the task table yet: it may have to be released,"
					  " see pg_task_release";
		values[8] = service ? quote_literal_cstr(service) : "NULL::text";
	}
	if (strstr(sql, names[12]))
		values[12] = table_access_own(access);
	if (strstr(sql, names[15]))
		values[15] = table_columns_of_run(access->relid);
	initStringInfo(&result);
	while (*sql)
	{
		for (i = 0; i < (int) lengthof(names); i++)
			if (strncmp(sql, names[i], strlen(names[i])) == 0)
				break;
		if (i < (int) lengthof(names))
		{
			appendStringInfoString(&result, values[i]);
			sql += strlen(names[i]);
		}
		else
			appendStringInfoChar(&result, *sql++);
	}
	return result.data;
}

/* The parameters of the query are the arguments of the function. */
static ParamListInfo
read_arguments(FunctionCallInfo fcinfo)
{
	ParamListInfo params = makeParamList(fcinfo->nargs);
	int count;
	Oid *types;
	int i;

	(void) get_func_signature(fcinfo->flinfo->fn_oid, &types, &count);
	for (i = 0; i < count; i++)
		params->params[i] = (ParamExternData){.value = fcinfo->args[i].value,
											  .isnull = fcinfo->args[i].isnull,
											  .pflags = PARAM_FLAG_CONST,
											  .ptype = types[i]};
	return params;
}

/* A function that looks back must be told for how long. */
static void
check_interval(const ParamListInfo params)
{
	const Interval zero = {0};

	if (params->numParams > 0 && params->params[0].ptype == INTERVALOID &&
		!DatumGetBool(
			DirectFunctionCall2(interval_gt, params->params[0].value, IntervalPGetDatum(&zero))))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("the time that is looked at must be greater than zero")));
}

/* The server's own error would come with a query of ours as its context. */
static void
check_select(const TableAccess *access)
{
	if (access->user != access->owner &&
		pg_class_aclcheck(access->relid, GetUserId(), ACL_SELECT) != ACLCHECK_OK &&
		pg_attribute_aclcheck_all(access->relid, GetUserId(), ACL_SELECT, ACLMASK_ANY) !=
			ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_TABLE, get_rel_name(access->relid));
}

/* The first value of the rows of SPI, which have one column of this type; NULL: there is none. */
static Datum
first_value(Oid type, bool *isnull)
{
	Datum value;
	int16 length;
	bool by_value;

	*isnull = true;
	if (SPI_processed == 0)
		return (Datum) 0;
	if (SPI_gettypeid(SPI_tuptable->tupdesc, 1) != type)
		ereport(ERROR, (errcode(ERRCODE_DATATYPE_MISMATCH), errmsg("the task table has changed")));
	value = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, isnull);
	get_typlenbyval(type, &length, &by_value);
	return *isnull ? (Datum) 0 : SPI_datumTransfer(value, by_value, length);
}

/*
 * A function that holds, resumes, runs or, by its key, stops a task has found none: a client that
 * sends an id without a type calls the variant that takes a key, whose last argument is the queue.
 */
static void
notice_none(Form_pg_proc form, const ParamListInfo params)
{
	static Notices none;
	int last = params->numParams - 1;
	bool has_key = form->proargtypes.values[0] == TEXTOID && !params->params[0].isnull &&
				   form->proargtypes.values[last] == TEXTOID && !params->params[last].isnull;
	char *key = has_key ? TextDatumGetCString(params->params[0].value) : NULL;
	char *hint = NULL;

	if (key && *key && strspn(key, "0123456789") == strlen(key))
		hint = "The first argument was taken for a key; an id must be of type bigint.";
	else if (key)
		hint = psprintf("It looked for the key in queue \"%s\" only: pg_task_repeating() has the"
						" queues of schedules.",
						TextDatumGetCString(params->params[last].value));
	notices_raise(&none, psprintf("%s has found no task for it", NameStr(form->proname)), hint);
}

/* The handler of the language. */
Datum
pg_task_report(PG_FUNCTION_ARGS)
{
	HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(fcinfo->flinfo->fn_oid));
	static const struct
	{
		const char *text;
		TaskColumn column;
	} written[] = {
		{" state = ", COLUMN_STATE}, {" failed = ", COLUMN_FAILED}, {" hold = ", COLUMN_HOLD}};
	SPIExecuteOptions options = {.params = read_arguments(fcinfo)};
	Datum value = (Datum) 0;
	TableAccess access;
	Form_pg_proc form;
	uint64 count;
	bool writes;
	bool finds;
	bool isnull;
	char *sql;
	char *statement;
	int tries = 0;
	int i;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", fcinfo->flinfo->fn_oid);
	form = (Form_pg_proc) GETSTRUCT(tuple);
	options.read_only = form->provolatile != PROVOLATILE_VOLATILE;
	sql = TextDatumGetCString(SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &isnull));
	check_interval(options.params);
	if (form->proretset)
	{
		ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

		InitMaterializedSRF(fcinfo, 0);
		options.dest = CreateDestReceiver(DestTuplestore);
		SetTuplestoreDestReceiverParams(options.dest, result->setResult, CurrentMemoryContext,
										false, result->setDesc, "the task table has changed");
	}
	access = table_access_open(strstr(sql, "{figures}") ? ACCESS_FIGURES : ACCESS_ROWS);
	check_select(&access);
	writes = strstr(sql, "{table}") != NULL;
	for (i = 0; writes && i < (int) lengthof(written); i++)
		if (strstr(sql, written[i].text))
			table_access_check_update(&access, written[i].column, "change");
	finds = writes && (strstr(sql, " hold = ") || strstr(sql, "t.key = "));
	access.inserts = strstr(sql, "{into}") != NULL;
	if (access.inserts)
		table_access_check_insert(&access, "plan");
	SPI_connect();
	statement = fill_names(&access, sql);
	do
	{
		count = table_access_execute(&access, statement, options,
									 writes			  ? SPI_OK_UPDATE
									 : access.inserts ? SPI_OK_INSERT_RETURNING
													  : SPI_OK_SELECT);
		/* the run of a schedule that has ended meanwhile leaves a row that a new snapshot shows */
	} while (count == 0 && finds && tries++ < FIND_TRIES);
	if (writes)
		value = Int64GetDatum((int64) count);
	else if (!form->proretset)
		value = first_value(form->prorettype, &fcinfo->isnull);
	SPI_finish();
	if (count == 0 && (access.inserts || finds))
		notice_none(form, options.params);
	if (options.dest)
		options.dest->rDestroy(options.dest);
	ReleaseSysCache(tuple);
	return value;
}

/*
 * pg_task_returns_json(role, role_id): is a response of this role one JSON document, if the row
 * does not say how it is formatted?
 */
Datum
pg_task_returns_json(PG_FUNCTION_ARGS)
{
	Oid role = roles_bound(NameStr(*PG_GETARG_NAME(0)), PG_GETARG_INT64(1));

	PG_RETURN_BOOL(roles_settings(role).format == RESULT_JSON);
}

/* The task table of the query that calls a function which is for queries of this file alone. */
static const TableAccess *
query_access(void)
{
	const TableAccess *access = table_access_current();

	if (access == NULL)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("this function can only be called by reports of pg_task")));
	return access;
}

/*
 * pg_task_side_fault(which): why the "queue" or "rate" table beside the task table cannot be used,
 * as a sentence; NULL: it can.
 */
Datum
pg_task_side_fault(PG_FUNCTION_ARGS)
{
	const TableAccess *access = query_access();
	char *which = text_to_cstring(PG_GETARG_TEXT_PP(0));
	SideKind kind = strcmp(which, "rate") == 0 ? SIDE_RATE : SIDE_QUEUE;
	const char *fault;
	Relation rel = side_table_open(kind, access->relid, access->owner, true, &fault);

	if (rel)
		relation_close(rel, NoLock);
	if (fault == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(fault));
}

/* The clock of a zone at a moment.  False: out of range. */
static bool
find_local(TimestampTz moment, pg_tz *zone, Timestamp *local)
{
	struct pg_tm tm;
	fsec_t fsec;
	int offset;

	return timestamp2tm(moment, &offset, &tm, &fsec, NULL, zone) == 0 &&
		   tm2timestamp(&tm, fsec, NULL, local) == 0;
}

/* When a schedule that is planned for "dt" runs next, at "since" or later.  False: never. */
static bool
find_following(FunctionCallInfo fcinfo, TimestampTz dt, pg_tz *zone, RowNext *next)
{
	TimestampTz since = PG_ARGISNULL(5) ? DT_NOBEGIN : PG_GETARG_TIMESTAMPTZ(5);
	RowRepeat repeat = {.dt = dt, .anchor = dt, .until = DT_NOEND, .runs = PG_INT32_MAX};

	if (!PG_ARGISNULL(0))
		repeat.cron = text_to_cstring(PG_GETARG_TEXT_PP(0));
	if (!PG_ARGISNULL(1))
		repeat.repeat = *PG_GETARG_INTERVAL_P(1);
	repeat.drift = PG_ARGISNULL(2) || PG_GETARG_BOOL(2);
	if (!PG_ARGISNULL(3))
		repeat.anchor = PG_GETARG_TIMESTAMPTZ(3);
	return repeat_following(&repeat, since > dt ? since - 1 : dt, zone, next);
}

/*
 * pg_task_following(cron, repeat, drift, anchor, dt, since, timezone, role, role_id): when a
 * schedule that is planned for "dt" runs next, at "since" or later, on which clock and in which
 * time zone; without "cron" and "repeat" the same of "dt".  The role counts where "timezone" is
 * NULL.  The query names rows that the caller may see.
 */
Datum
pg_task_following(PG_FUNCTION_ARGS)
{
	SettingsTask settings = {0};
	char *timezone = NULL;
	Datum values[4] = {0};
	bool nulls[4] = {true, true, true, true};
	RowNext next = {0};
	Timestamp local;
	TupleDesc desc;
	pg_tz *zone;

	(void) query_access();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "pg_task_following must return a row");
	if (!PG_ARGISNULL(6))
		timezone = text_to_cstring(PG_GETARG_TEXT_PP(6));
	else if (!PG_ARGISNULL(7) && !PG_ARGISNULL(8))
		settings = roles_settings(roles_bound(NameStr(*PG_GETARG_NAME(7)), PG_GETARG_INT64(8)));
	if (PG_ARGISNULL(4))
		PG_RETURN_NULL();
	next.dt = PG_GETARG_TIMESTAMPTZ(4);
	zone = repeat_zone(&settings, timezone);
	if (zone &&
		((PG_ARGISNULL(0) && PG_ARGISNULL(1)) || find_following(fcinfo, next.dt, zone, &next)))
	{
		values[0] = TimestampTzGetDatum(next.dt);
		values[1] = TimestampTzGetDatum(next.anchor);
		values[3] = CStringGetTextDatum(pg_get_timezone_name(zone));
		nulls[0] = nulls[3] = false;
		nulls[1] = !next.has_anchor;
		nulls[2] = !find_local(next.dt, zone, &local);
		values[2] = nulls[2] ? (Datum) 0 : TimestampGetDatum(local);
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/*
 * pg_task_queue_facts(queues): is each of these queues paused, and how many sessions wait for its
 * tasks?  NULL: executors run them.  The query names queues of rows that the caller may see.
 */
Datum
pg_task_queue_facts(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = result_set_begin(fcinfo, 3);
	const TableAccess *access = query_access();
	TimestampTz now = GetCurrentTimestamp();
	QueueRules *rules;
	const QueueRule **found;
	const char **names;
	int *takers;
	Datum *queues;
	int count;
	int i;

	rules = queue_rules_load(access->relid, access->owner);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), TEXTOID, -1, false, TYPALIGN_INT, &queues, NULL,
					  &count);
	found = palloc(Max(count, 1) * sizeof(QueueRule *));
	names = palloc(Max(count, 1) * sizeof(char *));
	takers = palloc(Max(count, 1) * sizeof(int));
	for (i = 0; i < count; i++)
	{
		names[i] = TextDatumGetCString(queues[i]);
		found[i] = queue_rules_find(rules, names[i]);
	}
	take_count_waiting(names, found, count, NULL, InvalidOid, takers);
	for (i = 0; i < count; i++)
	{
		ResultRow row;

		result_row_begin(&row, result->setDesc);
		result_row_set(&row, "queue", queues[i]);
		result_row_set(&row, "paused", BoolGetDatum(queue_rule_pauses(found[i], now)));
		if (found[i]->taker > 0)
			result_row_set(&row, "takers", Int32GetDatum(takers[i]));
		tuplestore_putvalues(result->setResult, result->setDesc, row.values, row.nulls);
	}
	return (Datum) 0;
}
