/*
 * functions.c
 *		What SQL calls, and what the server calls at the end of a transaction
 *		and around utility commands.
 *
 * The trigger on the task table remembers, per transaction, in which groups
 * rows wait.  After the commit, when others can see the rows, the scheduler
 * is told and woken.  Nothing is done before, so a rollback costs nothing and
 * a commit waits for nobody.
 *
 * Commands that need a database for themselves (DROP, RENAME, being copied as
 * a template) first have our idle processes leave it until the end of the
 * transaction.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/partition.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "functions.h"
#include "schedule.h"
#include "shared.h"

PGDLLEXPORT Datum pg_task_planned(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum pg_task_next(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_task_planned);
PG_FUNCTION_INFO_V1(pg_task_next);

/* How long a command waits for our processes to leave a database. */
#define VACATE_MS 5000

/* The columns that the trigger reads. */
typedef enum NotedColumn
{
	NOTED_ID,
	NOTED_DT,
	NOTED_QUEUE,
	NOTED_MAX,
	NOTED_PRIORITY,
	NOTED_ROLE,
	NOTED_REMOTE,
	NOTED_COLUMNS
} NotedColumn;

static const struct
{
	const char *name;
	Oid type;
} noted_columns[NOTED_COLUMNS] = {
	[NOTED_ID] = {"id", INT8OID},
	[NOTED_DT] = {"dt", TIMESTAMPTZOID},
	[NOTED_QUEUE] = {"queue", TEXTOID},
	[NOTED_MAX] = {"max", INT4OID},
	[NOTED_PRIORITY] = {"priority", INT4OID},
	[NOTED_ROLE] = {"role", NAMEOID},
	[NOTED_REMOTE] = {"remote", TEXTOID},
};

/* What this transaction did that others have to be told of. */
static struct
{
	Oid relid; /* the task table, the root if it is partitioned */
	int count;
	SharedNote notes[SHARED_NOTES];
	bool all;		 /* the notes are not all */
	bool supervisor; /* databases or roles changed */
	bool holds;		 /* a database is held */
} pending;

static ProcessUtility_hook_type next_utility_hook = NULL;

/* ---- the trigger ---- */

/*
 * The number of a column, from memory if it still is the right one.  The type
 * is checked every time: anybody may put this trigger on any table.
 */
static int
column_number(TupleDesc desc, NotedColumn which)
{
	static int remembered[NOTED_COLUMNS];
	const char *name = noted_columns[which].name;
	int number = remembered[which];

	if (number < 1 || number > desc->natts ||
		strcmp(NameStr(TupleDescAttr(desc, number - 1)->attname), name) != 0)
		number = SPI_fnumber(desc, name);
	if (number < 1 || TupleDescAttr(desc, number - 1)->atttypid != noted_columns[which].type)
		ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
						errmsg("the table of this trigger is not a task table"),
						errdetail("It has no column \"%s\" of type %s.", name,
								  format_type_be(noted_columns[which].type))));
	return remembered[which] = number;
}

static Datum
column_value(HeapTuple tuple, TupleDesc desc, NotedColumn which, bool *isnull)
{
	return SPI_getbinval(tuple, desc, column_number(desc, which), isnull);
}

/* The table that the scheduler knows: of a partition, the root. */
static Oid
root_table(Relation rel)
{
	static Oid partition = InvalidOid;
	static Oid root = InvalidOid;

	if (!rel->rd_rel->relispartition)
		return RelationGetRelid(rel);
	if (partition != RelationGetRelid(rel))
	{
		root = llast_oid(get_partition_ancestors(RelationGetRelid(rel)));
		partition = RelationGetRelid(rel);
	}
	return root;
}

/* Read the group and the place of a row.  False: a note cannot hold it. */
static bool
read_note(HeapTuple tuple, TupleDesc desc, SharedNote *note)
{
	bool isnull;
	bool max_isnull;
	Datum queue;
	Datum max;

	memset(note, 0, sizeof(SharedNote));
	note->place.id = DatumGetInt64(column_value(tuple, desc, NOTED_ID, &isnull));
	note->place.dt = DatumGetTimestampTz(column_value(tuple, desc, NOTED_DT, &isnull));
	if (isnull)
		return false;
	note->priority = DatumGetInt32(column_value(tuple, desc, NOTED_PRIORITY, &isnull));
	max = column_value(tuple, desc, NOTED_MAX, &max_isnull);
	note->max = max_isnull ? TASK_UNLIMITED : DatumGetInt32(max);
	note->role = *DatumGetName(column_value(tuple, desc, NOTED_ROLE, &isnull));
	queue = column_value(tuple, desc, NOTED_QUEUE, &isnull);
	if (isnull || VARSIZE_ANY_EXHDR(DatumGetTextPP(queue)) >= NAMEDATALEN)
		return false;
	text_to_cstring_buffer(DatumGetTextPP(queue), note->queue, NAMEDATALEN);
	return true;
}

static void
remember(Oid relid, const SharedNote *note)
{
	if (pending.relid != relid && OidIsValid(pending.relid))
		pending.all = true;
	pending.relid = relid;
	if (note == NULL || !shared_note_merge(pending.notes, &pending.count, note))
		pending.all = true;
}

/*
 * Trigger, AFTER INSERT OR UPDATE of a row that is PLAN now: the scheduler is
 * told of it when the transaction has committed.
 */
Datum
pg_task_planned(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	TupleDesc desc;
	HeapTuple tuple;
	SharedNote note;
	bool isnull;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(data->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(data->tg_event) || TRIGGER_FIRED_BY_DELETE(data->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("pg_task_planned must be called AFTER INSERT OR UPDATE, FOR EACH ROW")));
	desc = RelationGetDescr(data->tg_relation);
	tuple = TRIGGER_FIRED_BY_UPDATE(data->tg_event) ? data->tg_newtuple : data->tg_trigtuple;
	(void) column_value(tuple, desc, NOTED_REMOTE, &isnull);
	if (!isnull)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("tasks on other servers are not supported yet"),
						errhint("Leave the column \"remote\" empty.")));
	if (Shared)
		remember(root_table(data->tg_relation), read_note(tuple, desc, &note) ? &note : NULL);
	return PointerGetDatum(NULL);
}

/* ---- other functions ---- */

/*
 * pg_task_next(planned, repeat, drift, ended, timezone): when a repeating task
 * that was planned and ended then runs next; NULL if never.
 */
Datum
pg_task_next(PG_FUNCTION_ARGS)
{
	char *name = text_to_cstring(PG_GETARG_TEXT_PP(4));
	TimestampTz ended = PG_GETARG_TIMESTAMPTZ(3);
	pg_tz *zone = pg_tzset(name);
	TimestampTz next;

	if (zone == NULL)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("time zone \"%s\" not recognized", name)));
	if (!schedule_next(PG_GETARG_TIMESTAMPTZ(0), PG_GETARG_INTERVAL_P(1), PG_GETARG_BOOL(2), ended,
					   ended, zone, &next))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(next);
}

/* ---- the end of a transaction ---- */

/* Nothing here may fail: after a commit there is no way back. */
static void
transaction_ended(XactEvent event, void *arg pg_attribute_unused())
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	if (event == XACT_EVENT_COMMIT && OidIsValid(pending.relid))
		shared_scheduler_note(MyDatabaseId, pending.relid, pending.notes, pending.count,
							  pending.all);
	if (pending.holds)
		shared_unhold();
	if (pending.supervisor && event == XACT_EVENT_COMMIT)
		shared_wake_supervisor();
	pending.relid = InvalidOid;
	pending.count = 0;
	pending.all = pending.supervisor = pending.holds = false;
}

/* ---- utility commands ---- */

/* May the current user make a database? */
static bool
may_create_database(void)
{
	HeapTuple tuple;
	bool may = superuser();

	tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(GetUserId()));
	if (HeapTupleIsValid(tuple))
	{
		may |= ((Form_pg_authid) GETSTRUCT(tuple))->rolcreatedb;
		ReleaseSysCache(tuple);
	}
	return may;
}

static bool
is_template(Oid database)
{
	HeapTuple tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	bool result = false;

	if (HeapTupleIsValid(tuple))
	{
		result = ((Form_pg_database) GETSTRUCT(tuple))->datistemplate;
		ReleaseSysCache(tuple);
	}
	return result;
}

static char *
option_value(List *options, const char *name)
{
	ListCell *cell;

	foreach(cell, options)
	{
		DefElem *option = lfirst_node(DefElem, cell);

		if (strcmp(option->defname, name) == 0 && option->arg)
			return defGetString(option);
	}
	return NULL;
}

/* A database of which the current user is an owner, or InvalidOid. */
static Oid
own_database(const char *name)
{
	Oid database = name ? get_database_oid(name, true) : InvalidOid;

	if (OidIsValid(database) && compat_owns_database(database, GetUserId()))
		return database;
	return InvalidOid;
}

static Oid
template_database(List *options)
{
	const char *name = option_value(options, "template");
	Oid database = get_database_oid(name ? name : "template1", true);

	if (OidIsValid(database) && may_create_database() &&
		(is_template(database) || compat_owns_database(database, GetUserId())))
		return database;
	return InvalidOid;
}

/*
 * The database that a command needs for itself.  InvalidOid if it needs none,
 * or if the user has no right to the command: then it will fail, and must not
 * disturb anybody.
 */
static Oid
database_needed(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_DropdbStmt:
			return own_database(((DropdbStmt *) statement)->dbname);
		case T_RenameStmt:
			if (((RenameStmt *) statement)->renameType == OBJECT_DATABASE)
				return own_database(((RenameStmt *) statement)->subname);
			return InvalidOid;
		case T_CreatedbStmt:
			return template_database(((CreatedbStmt *) statement)->options);
		case T_AlterDatabaseStmt:
			if (option_value(((AlterDatabaseStmt *) statement)->options, "tablespace"))
				return own_database(((AlterDatabaseStmt *) statement)->dbname);
			return InvalidOid;
		default:
			return InvalidOid;
	}
}

/* Does the command change which databases should have a scheduler? */
static bool
concerns_supervisor(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_CreatedbStmt:
		case T_DropdbStmt:
		case T_AlterDatabaseStmt:
		case T_CreateRoleStmt:
		case T_AlterRoleStmt:
		case T_DropRoleStmt:
			return true;
		case T_RenameStmt:
			return ((RenameStmt *) statement)->renameType == OBJECT_DATABASE ||
				   ((RenameStmt *) statement)->renameType == OBJECT_ROLE;
		case T_AlterOwnerStmt:
			return ((AlterOwnerStmt *) statement)->objectType == OBJECT_DATABASE;
		default:
			return false;
	}
}

static bool
commits_prepared(Node *statement)
{
	return IsA(statement, TransactionStmt) &&
		   ((TransactionStmt *) statement)->kind == TRANS_STMT_COMMIT_PREPARED;
}

static void
utility(PlannedStmt *pstmt, const char *query, bool read_only_tree, ProcessUtilityContext context,
		ParamListInfo params, QueryEnvironment *environment, DestReceiver *destination,
		QueryCompletion *completion)
{
	Node *statement = pstmt->utilityStmt;
	bool prepared = commits_prepared(statement);
	Oid database = InvalidOid;

	if (!prepared)
	{
		database = database_needed(statement);
		pending.supervisor |= concerns_supervisor(statement);
	}
	if (OidIsValid(database) && shared_hold(database))
	{
		pending.holds = true;
		shared_wait_vacant(database, VACATE_MS);
	}
	if (next_utility_hook)
		next_utility_hook(pstmt, query, read_only_tree, context, params, environment, destination,
						  completion);
	else
		standard_ProcessUtility(pstmt, query, read_only_tree, context, params, environment,
								destination, completion);
	/* what another session prepared may have planned tasks */
	if (prepared)
		shared_scheduler_note(MyDatabaseId, InvalidOid, NULL, 0, true);
}

/* Install the callbacks; only where the library was preloaded. */
void
functions_define(void)
{
	RegisterXactCallback(transaction_ended, NULL);
	next_utility_hook = ProcessUtility_hook;
	ProcessUtility_hook = utility;
}
