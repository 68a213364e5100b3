/*
 * settings.c
 *		The settings of pg_task, with their check hooks: among them the list of databases, and the
 *		place of the task table of a database.  Time zones by name.
 *
 * This file knows names, units and ranges, and checks them.  It uses no SPI, and shared memory only
 * for the task of a parallel worker, looks nothing up in catalogs, and does not decide what a
 * setting means for a running process.
 */
#include "postgres.h"

#include <limits.h>

#include "access/parallel.h"
#include "lib/stringinfo.h"
#include "parser/scansup.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/varlena.h"

#include "compat.h"
#include "settings.h"
#include "shared/slots.h"
#include "shared/task.h"

#define PERIOD_MAX (24 * 60 * 60 * 1000)

/* Value of pg_task.synchronous_commit besides those of the server's own setting. */
#define COMMIT_AS_DATABASE (-1)

SettingsValues Settings = {
	.enabled = true,
	.max_executors = 4,
	.idle_timeout = 60 * 1000,
	.response_limit = 16 * 1024 * 1024,
	.max_crashes = 2,
	.log = LOG_TASKS_FAILURES,
	.log_min_duration = -1,
	.stat_max = 1000,
	.max_takers = 100,
	.max_taken = 1000,
	.max_lost = 5,
	.lease = 60 * 1000,
	.task = {.batch = 1,
			 .delay = 10 * 1000,
			 .backoff = 2,
			 .keep = 7 * SECS_PER_DAY,
			 .keep_failed = 30 * SECS_PER_DAY,
			 .missed = MISSED_ONE,
			 .format = RESULT_TEXT},
	.task_id = SETTINGS_NO_TASK,
};

/*
 * The names of the table's place have two names each: the older, shorter one is a reserved word of
 * SQL.  Behind each name is the older one.
 */
typedef enum LocationName
{
	SCHEMA_NAME,
	SCHEMA_OLDER,
	TABLE_NAME,
	TABLE_OLDER,
	LOCATION_NAMES
} LocationName;

/*
 * The settings that other files read through the functions below.  The server writes them, as those
 * in Settings, and the hooks of this file the sources.
 */
static struct
{
	char *database;
	char *timezone; /* empty: not set */
	int synchronous_commit;
	char *id; /* never set: pg_task.id has a show hook */
	char *names[LOCATION_NAMES];
	GucSource sources[LOCATION_NAMES]; /* where each of them was set */
	bool create;
	int period; /* milliseconds */
} variables = {
	.synchronous_commit = COMMIT_AS_DATABASE,
	.create = true,
	.period = 1000,
};

static const struct config_enum_entry commit_options[] = {
	{"database", COMMIT_AS_DATABASE, false},
	{"off", SYNCHRONOUS_COMMIT_OFF, false},
	{"local", SYNCHRONOUS_COMMIT_LOCAL_FLUSH, false},
	{"remote_write", SYNCHRONOUS_COMMIT_REMOTE_WRITE, false},
	{"on", SYNCHRONOUS_COMMIT_ON, false},
	{"remote_apply", SYNCHRONOUS_COMMIT_REMOTE_APPLY, false},
	{NULL, 0, false}};

static const struct config_enum_entry missed_options[] = {
	{"one", MISSED_ONE, false},
	{"none", MISSED_NONE, false},
	{"all", MISSED_ALL, false},
	{NULL, 0, false},
};

static const struct config_enum_entry log_options[] = {
	{"none", LOG_TASKS_NONE, false},
	{"failures", LOG_TASKS_FAILURES, false},
	{"ends", LOG_TASKS_ENDS, false},
	{"all", LOG_TASKS_ALL, false},
	{NULL, 0, false},
};

static const struct config_enum_entry format_options[] = {
	{"text", RESULT_TEXT, false},
	{"csv", RESULT_CSV, false},
	{"json", RESULT_JSON, false},
	{NULL, 0, false},
};

/* ---- the list of databases ---- */

/* Advance *text past white space.  Returns the character there. */
static char
skip_space(const char **text)
{
	while (scanner_isspace(**text))
		(*text)++;
	return **text;
}

/*
 * Read an identifier at *text, quoted or not, and advance *text past it and the white space that
 * follows.  Returns NULL if there is none.
 */
static char *
read_identifier(const char **text)
{
	bool quoted = (skip_space(text) == '"');
	const char *p = *text;
	StringInfoData name;

	initStringInfo(&name);
	if (quoted)
	{
		bool closed = false;

		for (p++; *p && !closed; p++)
		{
			closed = (p[0] == '"' && p[1] != '"');
			if (!closed)
				appendStringInfoChar(&name, *p);
			if (p[0] == '"' && !closed)
				p++;
		}
		if (!closed)
			return NULL;
	}
	else
	{
		while (*p && *p != ',' && *p != ':' && *p != '"' && !scanner_isspace(*p))
			appendStringInfoChar(&name, *p++);
	}
	*text = p;
	(void) skip_space(text);
	if (name.len == 0 || name.len >= NAMEDATALEN)
		return NULL;
	return quoted ? name.data : downcase_identifier(name.data, name.len, false, false);
}

/*
 * Read one entry of pg_task.database and advance *text past it.  NULL: a syntax error.  Sets *none
 * to whether its name is that word, without quotes.
 */
static Target *
read_target(const char **text, bool *none)
{
	Target *target = palloc0(sizeof(Target));
	char first = skip_space(text);

	*none = false;
	target->excluded = (first == '-');
	if (first == '-' || first == '*')
		(*text)++;
	if (first == '*')
		(void) skip_space(text);
	else
	{
		bool quoted = (skip_space(text) == '"');

		target->database = read_identifier(text);
		if (target->database == NULL)
			return NULL;
		*none = !quoted && strcmp(target->database, "none") == 0;
	}
	if (**text != ':')
		return target;
	(*text)++;
	target->role = read_identifier(text);
	return target->role && !target->excluded ? target : NULL;
}

/*
 * Parse a list like "db1, db2:user2" or "*, -db3" into a List of Target in the current
 * memory context.  Returns false on a syntax error.
 */
static bool
parse_targets(const char *text, List **targets)
{
	*targets = NIL;
	if (skip_space(&text) == '\0')
		text = "*";
	for (;;)
	{
		bool none;
		Target *target = read_target(&text, &none);

		if (target == NULL)
			return false;
		/* the word is the whole list */
		if (none)
			return *targets == NIL && !target->excluded && !target->role && *text == '\0';
		*targets = lappend(*targets, target);
		if (*text == '\0')
			return true;
		if (*text++ != ',')
			return false;
	}
}

/*
 * Check a list that has no syntax errors.  Returns what is wrong, or NULL.  A database of the name
 * "*" beside the word for all is the one mistake that is not told apart.
 */
static const char *
targets_fault(List *targets)
{
	bool served = false;
	ListCell *cell;
	ListCell *other;

	foreach(cell, targets)
	{
		const Target *target = lfirst(cell);
		const char *name = target->database ? target->database : "*";

		for_each_cell(other, targets, lnext(targets, cell))
		{
			const char *another = ((Target *) lfirst(other))->database;

			if (strcmp(name, another ? another : "*") == 0)
				return psprintf("Database \"%s\" is named twice.", name);
		}
		served |= !target->excluded;
	}
	return served || targets == NIL ? NULL : "A database can be left out of all: \"*, -database\".";
}

static bool
check_database_list(char **newval, void **extra pg_attribute_unused(),
					GucSource source pg_attribute_unused())
{
	List *targets;
	const char *fault = "The value must be a list like \"database1, database2:role2\", or"
						" \"*, -database3\" for all but some, or \"none\", with names quoted as in"
						" SQL where needed.";

	if (parse_targets(*newval, &targets))
		fault = targets_fault(targets);
	if (fault)
		GUC_check_errdetail("%s", fault);
	return fault == NULL;
}

/* ---- hooks ---- */

/*
 * Return the zone that SET TimeZone takes by this name; NULL: there is none.  A zone with leap
 * seconds is not one: the server computes without them.
 */
pg_tz *
zone_find(const char *name)
{
	pg_tz *zone = pg_tzset(name);

	return zone && pg_tz_acceptable(zone) ? zone : NULL;
}

/* A time zone, by the name that SET TimeZone takes, or nothing. */
static bool
check_timezone(char **newval, void **extra pg_attribute_unused(),
			   GucSource source pg_attribute_unused())
{
	if (**newval == '\0' || zone_find(*newval))
		return true;
	GUC_check_errdetail("The time zone \"%s\" is not recognized.", *newval);
	return false;
}

/* A list of library names, as in session_preload_libraries. */
static bool
check_libraries(char **newval, void **extra pg_attribute_unused(),
				GucSource source pg_attribute_unused())
{
	List *names;
	ListCell *cell;

	if (!SplitDirectoriesString(pstrdup(*newval), ',', &names))
	{
		GUC_check_errdetail("The value must be a list of library names.");
		return false;
	}
	foreach(cell, names)
	{
		if (strchr(lfirst(cell), '/') == NULL)
			continue;
		GUC_check_errdetail("A library must be named without a directory.");
		return false;
	}
	return true;
}

const char *const settings_of_databases[] = {
	"pg_task.enabled", "pg_task.create_table", "pg_task.owner_code",
	"pg_task.period",  "pg_task.schema",	   "pg_task.schema_name",
	"pg_task.table",   "pg_task.table_name",   NULL,
};

/*
 * Check that it is not a session that sets one of these parameters for itself: nothing would come
 * of it.
 */
static bool
check_source(GucSource source)
{
	if (source != PGC_S_SESSION)
		return true;
	GUC_check_errcode(ERRCODE_CANT_CHANGE_RUNTIME_PARAM);
	GUC_check_errdetail("It is a setting of the database, and cannot be set in a session.");
	GUC_check_errhint("Use ALTER DATABASE ... SET.");
	return false;
}

static bool
check_source_of_bool(bool *newval pg_attribute_unused(), void **extra pg_attribute_unused(),
					 GucSource source)
{
	return check_source(source);
}

static bool
check_source_of_int(int *newval pg_attribute_unused(), void **extra pg_attribute_unused(),
					GucSource source)
{
	return check_source(source);
}

/* Check a name of the place of the table, and keep with it where it was set. */
static bool
check_location(char **newval, void **extra, GucSource source)
{
	if (strlen(*newval) >= NAMEDATALEN)
	{
		GUC_check_errdetail("A name is at most %d bytes long.", NAMEDATALEN - 1);
		return false;
	}
	if (!check_source(source))
		return false;
	*extra = compat_guc_malloc(sizeof(GucSource));
	if (*extra)
		*(GucSource *) *extra = source;
	return *extra != NULL;
}

static bool
check_table_name(char **newval, void **extra, GucSource source)
{
	if (**newval != '\0')
		return check_location(newval, extra, source);
	GUC_check_errdetail("The name of the task table must not be empty.");
	return false;
}

static void
assign_schema_name(const char *newval pg_attribute_unused(), void *extra)
{
	variables.sources[SCHEMA_NAME] = *(GucSource *) extra;
}

static void
assign_older_schema_name(const char *newval pg_attribute_unused(), void *extra)
{
	variables.sources[SCHEMA_OLDER] = *(GucSource *) extra;
}

static void
assign_table_name(const char *newval pg_attribute_unused(), void *extra)
{
	variables.sources[TABLE_NAME] = *(GucSource *) extra;
}

static void
assign_older_table_name(const char *newval pg_attribute_unused(), void *extra)
{
	variables.sources[TABLE_OLDER] = *(GucSource *) extra;
}

/*
 * Return the value in force.  The one that was set at the more specific place is, as if there were
 * one setting; at the same place that of the newer name.
 */
static const char *
location(LocationName name)
{
	return variables.names[name + (variables.sources[name + 1] > variables.sources[name])];
}

static const char *
show_schema_name(void)
{
	return location(SCHEMA_NAME);
}

static const char *
show_table_name(void)
{
	return location(TABLE_NAME);
}

static bool
check_flow(char **newval, void **extra pg_attribute_unused(),
		   GucSource source pg_attribute_unused())
{
	if (strlen(*newval) <= TASK_NAME_MAX)
		return true;
	GUC_check_errdetail("The label of a workflow is at most %d bytes long.", TASK_NAME_MAX);
	return false;
}

static bool
check_on_failure(char **newval, void **extra pg_attribute_unused(),
				 GucSource source pg_attribute_unused())
{
	if (strlen(*newval) <= TASK_ON_FAILURE_MAX)
		return true;
	GUC_check_errdetail("It is at most %d bytes long.", TASK_ON_FAILURE_MAX);
	GUC_check_errhint("Call a function that does the rest.");
	return false;
}

/*
 * Is this a jsonb, and short enough as the server writes it?  The errors of jsonb_in, which hold
 * nothing, are caught: the postmaster must not exit because of a line in postgresql.conf.
 */
static bool
check_meta(char **newval, void **extra pg_attribute_unused(),
		   GucSource source pg_attribute_unused())
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext scratch;
	volatile bool valid = false;

	if ((*newval)[0] == '\0')
		return true;
	scratch = AllocSetContextCreate(caller, "pg_task meta", ALLOCSET_SMALL_SIZES);
	MemoryContextSwitchTo(scratch);
	PG_TRY();
	{
		if (strlen(*newval) <= TASK_META_MAX)
		{
			Jsonb *meta = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(*newval)));

			valid = strlen(JsonbToCString(NULL, &meta->root, VARSIZE(meta))) <= TASK_META_MAX;
		}
	}
	PG_CATCH();
	{
		if (ERRCODE_TO_CATEGORY(geterrcode()) == ERRCODE_OPERATOR_INTERVENTION ||
			ERRCODE_TO_CATEGORY(geterrcode()) == ERRCODE_INSUFFICIENT_RESOURCES)
			PG_RE_THROW();
		FlushErrorState();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(scratch);
	if (!valid)
		GUC_check_errdetail("It must be JSON of at most %d bytes, as type jsonb shows it.",
							TASK_META_MAX);
	return valid;
}

/* The task that this process runs, or the leader of this parallel worker; or SETTINGS_NO_TASK. */
int64
settings_task_id(void)
{
	TimestampTz planned;
	int64 id;

	if (IsParallelWorker() && executor_slot_own_task(&id, &planned))
		return id;
	return Settings.task_id;
}

/*
 * The value of pg_task.flow or pg_task.meta, which is not defined in a server without preloading.
 * NULL: none.
 */
const char *
settings_label(const char *value, const char *name)
{
	if (value == NULL)
		value = GetConfigOption(name, true, false);
	return value && value[0] != '\0' ? value : NULL;
}

/* Show hook of pg_task.id, whose variable is never set.  The server copies the text. */
static const char *
show_id(void)
{
	static char text[24];
	int64 id = settings_task_id();

	text[0] = '\0';
	if (id != SETTINGS_NO_TASK)
		pg_lltoa(id, text);
	return text;
}

/* ---- definitions ---- */

/*
 * What is told about tasks, a role must not be able to hide of its own: only superusers set that.
 */
static const struct
{
	const char *name;
	const char *text;
	const char *detail;
	int *variable;
	int low;
	int high;
	GucContext context;
	int unit;
} integers[] = {
	{"pg_task.period", "Sets the maximum time between two scans of the task table.", NULL,
	 &variables.period, 1, PERIOD_MAX, PGC_USERSET, GUC_UNIT_MS},
	{"pg_task.max_executors", "Sets the maximum number of tasks running at once on this server.",
	 "Each running task uses one of max_worker_processes.", &Settings.max_executors, 1, 1024,
	 PGC_POSTMASTER, 0},
	{"pg_task.max_schedulers",
	 "Sets the maximum number of schedulers running at once on this server.",
	 "If more databases have a task table, each gets a scheduler in turn.  Zero means half of the"
	 " remaining worker slots.",
	 &Settings.max_schedulers, 0, 1024, PGC_SIGHUP, 0},
	{"pg_task.role_executors",
	 "Sets the maximum number of tasks of a role running at once on this server.",
	 "Zero means no limit.  To limit one role, use ALTER ROLE ... SET.",
	 &Settings.task.max_executors, 0, 1024, PGC_SUSET, 0},
	{"pg_task.idle_timeout", "Sets the time after which an idle executor exits.", NULL,
	 &Settings.idle_timeout, 0, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS},
	{"pg_task.max_crashes", "Sets the number of server crashes after which a task fails.",
	 "It counts the crashes while the task was running and may have been their cause.  A database"
	 " whose scheduler has crashed the server as often in a row is held back.",
	 &Settings.max_crashes, 1, INT_MAX, PGC_SIGHUP, 0},
	{"pg_task.aging",
	 "Sets how long a task waits until it counts as one of the next better priority.",
	 "0 means that the priority stays.", &Settings.aging, 0, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS},
	{"pg_task.keep",
	 "Sets how long the row of a task that is DONE or STOP stays, if its column \"keep\" is NULL.",
	 "-1 means for ever.", &Settings.task.keep, SETTINGS_KEEP_FOR_EVER, INT_MAX, PGC_USERSET,
	 GUC_UNIT_S},
	{"pg_task.keep_failed",
	 "Sets how long the row of a task that is FAIL or GONE stays, if its column \"keep\" is NULL.",
	 "It counts for one that is STOP in a workflow, too.  -1 means for ever.",
	 &Settings.task.keep_failed, SETTINGS_KEEP_FOR_EVER, INT_MAX, PGC_USERSET, GUC_UNIT_S},
	{"pg_task.max_takers", "Sets the maximum number of sessions that wait for tasks at once.",
	 "They wait in pg_task_take, in all databases.", &Settings.max_takers, 1, 10000, PGC_POSTMASTER,
	 0},
	{"pg_task.max_taken", "Sets the maximum number of tasks that are taken at once.",
	 "Those that programs have taken and not ended yet, in all databases.", &Settings.max_taken, 1,
	 100000, PGC_POSTMASTER, 0},
	{"pg_task.lease", "Sets how long a task that was taken is held until pg_task_alive is called.",
	 "0 means as long as the session lives that has taken it.", &Settings.lease, 0, INT_MAX,
	 PGC_USERSET, GUC_UNIT_MS},
	{"pg_task.max_lost", "Sets how often a task may be lost by who has taken it until it fails.",
	 "It is lost when its lease expires, or its session goes.", &Settings.max_lost, 1, INT_MAX,
	 PGC_SIGHUP, 0},
	{"pg_task.stat_max",
	 "Sets the maximum number of queues that pg_stat_task counts, of all databases.",
	 "When there are more, the others are counted together.", &Settings.stat_max, 10, 10000,
	 PGC_POSTMASTER, 0},
	{"pg_task.log_min_duration",
	 "Sets the duration from which on the end of a task's run is logged.",
	 "-1 turns this off, 0 logs all ends of runs.", &Settings.log_min_duration, -1, INT_MAX,
	 PGC_SUSET, GUC_UNIT_MS},
	{"pg_task.response_limit",
	 "Sets the maximum length of the response, error and notice of a task.",
	 "Longer text is truncated and marked as truncated.", &Settings.response_limit, 64,
	 512 * 1024 * 1024, PGC_SUSET, GUC_UNIT_BYTE},
	{"pg_task.timeout", "Sets the maximum duration of a task whose column \"timeout\" is NULL.",
	 "Zero means no limit.", &Settings.timeout, 0, INT_MAX, PGC_USERSET, GUC_UNIT_MS},
	{"pg_task.batch", "Sets the maximum number of short tasks that are run and committed together.",
	 "One means that each task has its own transaction.", &Settings.task.batch, 1,
	 SETTINGS_BATCH_MAX, PGC_USERSET, 0},
	{"pg_task.retry",
	 "Sets the maximum number of retries of a task whose column \"retry\" is NULL.", NULL,
	 &Settings.task.retry, 0, INT_MAX, PGC_USERSET, 0},
	{"pg_task.delay",
	 "Sets the delay before the first retry of a task whose column \"delay\" is NULL.", NULL,
	 &Settings.task.delay, 0, INT_MAX, PGC_USERSET, GUC_UNIT_MS},
	{"pg_task.hold_after",
	 "Sets how many runs in a row of a schedule whose column \"hold_after\" is NULL may fail before"
	 " it is put on hold.",
	 "Zero means that none is.", &Settings.task.hold_after, 0, INT_MAX, PGC_USERSET, 0},
	{"pg_task.active",
	 "Sets the time after its planned time within which a task whose column \"active\" is NULL may"
	 " start.",
	 "Zero means no limit.", &Settings.task.active, 0, INT_MAX, PGC_USERSET, GUC_UNIT_MS},
};

/* A setting of the database.  Its default is the value that its variable has had so far. */
static void
define_bool(const char *name, const char *text, const char *detail, bool *variable)
{
	DefineCustomBoolVariable(name, text, detail, variable, *variable, PGC_USERSET, 0,
							 check_source_of_bool, NULL, NULL);
}

/* Likewise, a choice. */
static void
define_enum(const char *name, const char *text, const char *detail, int *variable,
			const struct config_enum_entry *options, GucContext context)
{
	DefineCustomEnumVariable(name, text, detail, variable, *variable, options, context, 0, NULL,
							 NULL, NULL);
}

static void
define_names(void)
{
	DefineCustomStringVariable("pg_task.schema_name", "Sets the schema of the task table.",
							   "Empty means the default creation schema of the role.  The schema is"
							   " created if it does not exist.",
							   &variables.names[SCHEMA_NAME], "", PGC_USERSET, 0, check_location,
							   assign_schema_name, show_schema_name);
	DefineCustomStringVariable("pg_task.table_name", "Sets the name of the task table.",
							   "The table is created if it does not exist.",
							   &variables.names[TABLE_NAME], "task", PGC_USERSET, 0,
							   check_table_name, assign_table_name, show_table_name);
	DefineCustomStringVariable("pg_task.schema", "Older name of \"pg_task.schema_name\".", NULL,
							   &variables.names[SCHEMA_OLDER], "", PGC_USERSET, 0, check_location,
							   assign_older_schema_name, show_schema_name);
	DefineCustomStringVariable("pg_task.table", "Older name of \"pg_task.table_name\".", NULL,
							   &variables.names[TABLE_OLDER], "task", PGC_USERSET, 0,
							   check_table_name, assign_older_table_name, show_table_name);
}

static void
define_texts(void)
{
	DefineCustomStringVariable(
		"pg_task.database", "Sets the databases that have a task table, and the role of each.",
		"A list like \"db1, db2:user2\".  The default role is the owner of the"
		" database.  Empty or \"*\" means every database that allows connections and"
		" is not a template, \"*, -db3\" all of them but one, \"none\" no database.",
		&variables.database, "", PGC_SIGHUP, 0, check_database_list, NULL, NULL);
	DefineCustomStringVariable(
		"pg_task.keep_libraries",
		"Sets the libraries that an executor may keep after a task has loaded them.",
		"They must not keep any state of a task.  Preloaded libraries, and a"
		" few of the server's own, are always kept.",
		&Settings.keep_libraries, "", PGC_SIGHUP, GUC_LIST_INPUT, check_libraries, NULL, NULL);
	DefineCustomStringVariable("pg_task.flow",
							   "Sets the workflow of the tasks that are inserted without one.",
							   "Empty means none.  In a task it is the workflow of the task.",
							   &Settings.flow, "", PGC_USERSET, 0, check_flow, NULL, NULL);
	DefineCustomStringVariable("pg_task.meta",
							   "Sets the labels of the tasks that are inserted without any.",
							   "JSON; empty means none.  In a task it has the labels of the task.",
							   &Settings.meta, "", PGC_USERSET, 0, check_meta, NULL, NULL);
	DefineCustomStringVariable("pg_task.on_failure",
							   "Sets the SQL that is planned as a task when a task has failed for"
							   " good whose column \"on_failure\" is NULL.",
							   "Empty means none.  It reads of which task by pg_task_input().  What"
							   " a session sets has no effect.",
							   &Settings.on_failure, "", PGC_USERSET, 0, check_on_failure, NULL,
							   NULL);
	DefineCustomStringVariable("pg_task.timezone",
							   "Sets the time zone of the repeats of a task whose column"
							   " \"timezone\" is NULL.",
							   "Empty means the TimeZone of the role of the task.",
							   &variables.timezone, "", PGC_USERSET, 0, check_timezone, NULL, NULL);
	DefineCustomStringVariable("pg_task.id", "Shows the id of the task that the session runs.",
							   NULL, &variables.id, "", PGC_INTERNAL,
							   GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE | GUC_NO_RESET_ALL, NULL,
							   NULL, show_id);
}

/*
 * Define all settings.  The default of each but texts is the value that its variable has had so
 * far: see "Settings" and "variables".
 */
void
settings_define(void)
{
	int i;

	define_names();
	define_texts();
	define_bool("pg_task.enabled", "Enables the start of tasks on this server, or in a database.",
				"If it is off for the server, no database can enable it for itself.",
				&Settings.enabled);
	DefineCustomBoolVariable("pg_task.require_standby",
							 "Starts tasks only while enough synchronous standbys are connected.",
							 "As many as a commit waits for, and at least one: none starts while"
							 " \"synchronous_standby_names\" is empty.",
							 &Settings.require_standby, Settings.require_standby, PGC_SIGHUP, 0,
							 NULL, NULL, NULL);
	define_bool("pg_task.owner_code",
				"Lets code of the task table's owner run when tasks of other roles are written.",
				"If it is off, tasks of other roles wait while a write to the table or its"
				" companions could run code that is neither C nor built in.",
				&Settings.owner_code);
	define_bool("pg_task.create_table", "Creates the task table if it does not exist.",
				"If it is off, a task table that exists is served, and where there is none nothing"
				" is created.",
				&variables.create);
	for (i = 0; i < (int) lengthof(integers); i++)
		DefineCustomIntVariable(
			integers[i].name, integers[i].text, integers[i].detail, integers[i].variable,
			*integers[i].variable, integers[i].low, integers[i].high, integers[i].context,
			integers[i].unit,
			integers[i].variable == &variables.period ? check_source_of_int : NULL, NULL, NULL);
	define_enum("pg_task.log", "Sets which events of tasks are logged.",
				"Each value includes those before it: none, failures, ends, all.", &Settings.log,
				log_options, PGC_SUSET);
	define_enum("pg_task.synchronous_commit", "Sets synchronous_commit for the commit of a task.",
				"\"database\" means that the server's own setting applies.",
				&variables.synchronous_commit, commit_options, PGC_USERSET);
	define_enum("pg_task.format",
				"Sets the format of the response of a task whose column \"format\" is NULL.", NULL,
				&Settings.task.format, format_options, PGC_USERSET);
	define_enum("pg_task.missed",
				"Sets which of the runs that a repeating task has missed it makes up for, if its"
				" column \"missed\" is NULL.",
				NULL, &Settings.task.missed, missed_options, PGC_USERSET);
	DefineCustomRealVariable("pg_task.backoff",
							 "Sets the factor by which the delay grows with each further retry of a"
							 " task whose column \"backoff\" is NULL.",
							 NULL, &Settings.task.backoff, Settings.task.backoff, 0, 1000000,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	MarkGUCPrefixReserved("pg_task");
}

/* ---- values ---- */

/*
 * Return the entries of pg_task.database as a List of Target in the current memory context.  NIL
 * means no database.
 */
List *
settings_targets(void)
{
	List *targets;

	if (!parse_targets(variables.database, &targets))
		elog(ERROR, "pg_task.database was not checked");
	return targets;
}

/* Return the value of prefix.database, or NULL if it is not set. */
static const char *
database_setting(const char *prefix, const char *database)
{
	return GetConfigOption(psprintf("%s.%s", prefix, database), true, false);
}

/* The same, but raise a WARNING and return NULL for a value that cannot be a name. */
static const char *
database_name_setting(const char *prefix, const char *database)
{
	const char *value = database_setting(prefix, database);

	if (value == NULL || (value[0] != '\0' && strlen(value) < NAMEDATALEN))
		return value;
	ereport(WARNING,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid value for parameter \"%s.%s\": \"%s\"", prefix, database, value),
			 errdetail("A name has 1 to %d bytes.", NAMEDATALEN - 1)));
	return NULL;
}

/* Return the period of a database, or raise a WARNING and return the general one. */
static int
database_period(const char *database)
{
	const char *value = database_setting("pg_task_period", database);
	const char *hint = NULL;
	int period;

	if (value == NULL)
		return variables.period;
	if (parse_int(value, &period, GUC_UNIT_MS, &hint) && period >= 1 && period <= PERIOD_MAX)
		return period;
	ereport(
		WARNING,
		(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
		 errmsg("invalid value for parameter \"pg_task_period.%s\": \"%s\"", database, value),
		 errdetail("It must be between 1 ms and 24 h; %d ms is used instead.", variables.period),
		 hint ? errhint("%s", _(hint)) : 0));
	return variables.period;
}

/*
 * Return where the task table of a database is, and how often it is scanned.  The setting for that
 * database overrides the general one.  An invalid value for a database causes a WARNING, and the
 * general one is used.  Strings are in the current memory context.
 */
Location
location_of(const char *database)
{
	const char *schema = database_name_setting("pg_task_schema", database);
	const char *table = database_name_setting("pg_task_table", database);
	Location result;

	if (schema == NULL)
		schema = location(SCHEMA_NAME);
	result.schema = schema[0] == '\0' ? NULL : pstrdup(schema);
	result.table = pstrdup(table ? table : location(TABLE_NAME));
	result.create = variables.create;
	result.period = database_period(database);
	return result;
}

/*
 * Return the current settings for tasks.  To be called before the process is connected: the
 * connection loads the settings of the database and of the role that it is connected as.
 */
SettingsTask
settings_task(void)
{
	SettingsTask result = Settings.task;

	result.timezone = session_timezone;
	result.on_failure = Settings.on_failure && Settings.on_failure[0] != '\0';
	/* without preloading the setting is not defined */
	if (variables.timezone && variables.timezone[0])
		result.task_timezone = pg_tzset(variables.timezone);
	return result;
}

/* Return the value of this name; the other one if the name is unknown. */
static int
option_value(const struct config_enum_entry *options, const char *name, int other)
{
	for (; options->name; options++)
		if (strcmp(options->name, name) == 0)
			return options->val;
	return other;
}

static const char *
option_name(const struct config_enum_entry *options, int value)
{
	while (options->val != value)
		options++;
	return options->name;
}

/* Return the value of synchronous_commit for a task's commit; NULL: do not change it. */
const char *
settings_commit(void)
{
	if (variables.synchronous_commit == COMMIT_AS_DATABASE)
		return NULL;
	return option_name(commit_options, variables.synchronous_commit);
}

/* Return the SettingsMissed of this name; the other value if it is NULL or unknown. */
SettingsMissed
settings_missed(const char *name, SettingsMissed other)
{
	if (name == NULL)
		return other;
	return option_value(missed_options, name, other);
}

/* The word for a value of "missed". */
const char *
settings_missed_word(SettingsMissed missed)
{
	return option_name(missed_options, missed);
}

/* Return the ResultFormat of this name; RESULT_TEXT if the name is unknown. */
int
settings_format(const char *name)
{
	return option_value(format_options, name, RESULT_TEXT);
}
