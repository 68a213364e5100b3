/*
 * settings.c
 *		The settings of pg_task, with their check hooks; those of the table are in location.c.
 *		Time zones by name.
 *
 * This file knows names, units and ranges, and checks them.  It uses neither shared memory nor SPI,
 * and it does not decide what a setting means for a running process.
 */
#include "postgres.h"

#include <limits.h>

#include "access/xact.h"
#include "nodes/memnodes.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/varlena.h"

#include "settings.h"
#include "shared/task.h"

/* More than all zones of the tz database need, at 24 kB each. */
#define ZONES_MAX ((Size) 32 * 1024 * 1024)

SettingsValues Settings = {
	.enabled = true,
	.max_executors = 4,
	.max_schedulers = 0,
	.idle_timeout = 60 * 1000,
	.response_limit = 16 * 1024 * 1024,
	.timeout = 0,
	.batch = 1,
	.max_crashes = 2,
	.log = LOG_TASKS_NONE,
	.log_min_duration = -1,
	.stat_max = 1000,
	.format = RESULT_TEXT,
	.task_id = SETTINGS_NO_TASK,
	.find_task_id = NULL,
};

/*
 * The settings that other files read through the functions below.  The server writes them, as those
 * in Settings.
 */
static struct
{
	char *database;
	char *keep_libraries;
	SettingsTask task; /* but for what settings_task fills in */
	char *timezone;	   /* empty: not set */
	int synchronous_commit;
	char *flow; /* the default of the column reads it */
	char *id;	/* never set: pg_task.id has a show hook */
} variables = {
	.task = {.delay = 10 * 1000,
			 .backoff = 2,
			 .keep = SETTINGS_KEEP_FOR_EVER,
			 .keep_failed = SETTINGS_KEEP_FOR_EVER},
	.synchronous_commit = SETTINGS_COMMIT_AS_DATABASE,
};

static const struct config_enum_entry commit_options[] = {
	{"database", SETTINGS_COMMIT_AS_DATABASE, false},
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

static bool
check_database_list(char **newval, void **extra pg_attribute_unused(),
					GucSource source pg_attribute_unused())
{
	List *targets;
	const char *fault = "The value must be a list like \"database1, database2:role2\", or"
						" \"*, -database3\" for all but some, or \"none\", with names quoted as in"
						" SQL where needed.";

	if (targets_parse(*newval, &targets))
		fault = targets_fault(targets);
	if (fault)
		GUC_check_errdetail("%s", fault);
	return fault == NULL;
}

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

/*
 * Parse a list of library names, as in session_preload_libraries.  Returns false on a syntax error.
 */
static bool
parse_libraries(const char *text, List **names)
{
	return SplitDirectoriesString(pstrdup(text), ',', names);
}

static bool
check_libraries(char **newval, void **extra pg_attribute_unused(),
				GucSource source pg_attribute_unused())
{
	List *names;
	ListCell *cell;

	if (!parse_libraries(*newval, &names))
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

/*
 * Check that it is not a session that sets this parameter of the database for itself: nothing would
 * come of it.
 */
bool
settings_check_source(GucSource source, const char *name)
{
	if (source != PGC_S_SESSION)
		return true;
	GUC_check_errcode(ERRCODE_CANT_CHANGE_RUNTIME_PARAM);
	GUC_check_errmsg("parameter \"%s\" cannot be set in a session: it is one of the database",
					 name);
	GUC_check_errhint("Use ALTER DATABASE ... SET %s.", name);
	return false;
}

static bool
check_enabled(bool *newval pg_attribute_unused(), void **extra pg_attribute_unused(),
			  GucSource source)
{
	return settings_check_source(source, "pg_task.enabled");
}

static bool
check_owner_code(bool *newval pg_attribute_unused(), void **extra pg_attribute_unused(),
				 GucSource source)
{
	return settings_check_source(source, "pg_task.owner_code");
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

/* The task that this process runs, or the leader of this parallel worker; or SETTINGS_NO_TASK. */
int64
settings_task_id(void)
{
	if (Settings.task_id == SETTINGS_NO_TASK && Settings.find_task_id)
		return Settings.find_task_id();
	return Settings.task_id;
}

/*
 * The label of the tasks that are inserted without one; empty: none.  Without preloading the
 * setting is not defined, and a session may have set it all the same.
 */
const char *
settings_flow(void)
{
	const char *flow = variables.flow;

	if (flow == NULL)
		flow = GetConfigOption("pg_task.flow", true, false);
	return flow ? flow : "";
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

static void
define_databases(void)
{
	DefineCustomStringVariable(
		"pg_task.database", "Sets the databases that have a task table, and the role of each.",
		"A list like \"db1, db2:user2\".  The default role is the owner of the"
		" database.  Empty or \"*\" means every database that allows connections and"
		" is not a template, \"*, -db3\" all of them but one, \"none\" no database.",
		&variables.database, "", PGC_SIGHUP, 0, check_database_list, NULL, NULL);
}

static void
define_limits(void)
{
	DefineCustomBoolVariable("pg_task.enabled",
							 "Enables the start of tasks on this server, or in a database.",
							 "If it is off for the server, no database can enable it for itself.",
							 &Settings.enabled, true, PGC_USERSET, 0, check_enabled, NULL, NULL);
	DefineCustomIntVariable(
		"pg_task.max_executors", "Sets the maximum number of tasks running at once on this server.",
		"Each running task uses one of max_worker_processes.", &Settings.max_executors, 4, 1, 1024,
		PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("pg_task.max_schedulers",
							"Sets the maximum number of schedulers running at once on this server.",
							"If more databases have a task table, each gets a scheduler in turn."
							"  Zero means half of the remaining worker slots.",
							&Settings.max_schedulers, 0, 0, 1024, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("pg_task.role_executors",
							"Sets the maximum number of tasks of a role running at once on this"
							" server.",
							"Zero means no limit.  To limit one role, use ALTER ROLE ... SET.",
							&variables.task.max_executors, 0, 0, 1024, PGC_SUSET, 0, NULL, NULL,
							NULL);
	DefineCustomIntVariable(
		"pg_task.idle_timeout", "Sets the time after which an idle executor exits.", NULL,
		&Settings.idle_timeout, 60 * 1000, 0, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
}

static void
define_protection(void)
{
	DefineCustomStringVariable(
		"pg_task.keep_libraries",
		"Sets the libraries that an executor may keep after a task has loaded them.",
		"They must not keep any state of a task.  Preloaded libraries, and a"
		" few of the server's own, are always kept.",
		&variables.keep_libraries, "", PGC_SIGHUP, GUC_LIST_INPUT, check_libraries, NULL, NULL);
	DefineCustomBoolVariable("pg_task.owner_code",
							 "Lets code of the task table's owner run when tasks of other roles are"
							 " written.",
							 "If it is off, tasks of other roles wait while a write to the table or"
							 " its companions could run code that is neither C nor built in.",
							 &Settings.owner_code, false, PGC_USERSET, 0, check_owner_code, NULL,
							 NULL);
	DefineCustomIntVariable("pg_task.max_crashes",
							"Sets the number of server crashes after which a task fails.",
							"It counts the crashes while the task was running and may have been"
							" their cause.  A database whose scheduler has crashed the server as"
							" often in a row is held back.",
							&Settings.max_crashes, 2, 1, INT_MAX, PGC_SIGHUP, 0, NULL, NULL, NULL);
}

static void
define_order(void)
{
	DefineCustomIntVariable("pg_task.aging",
							"Sets how long a task waits until it counts as one of the next better"
							" priority.",
							"0 means that the priority stays.", &Settings.aging, 0, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
}

static void
define_history(void)
{
	DefineCustomIntVariable("pg_task.keep",
							"Sets how long the row of a task that is DONE or STOP stays, if its"
							" column \"keep\" is NULL.",
							"-1 means for ever.", &variables.task.keep, SETTINGS_KEEP_FOR_EVER,
							SETTINGS_KEEP_FOR_EVER, INT_MAX, PGC_USERSET, GUC_UNIT_S, NULL, NULL,
							NULL);
	DefineCustomIntVariable("pg_task.keep_failed",
							"Sets how long the row of a task that is FAIL or GONE stays, if its"
							" column \"keep\" is NULL.",
							"-1 means for ever.", &variables.task.keep_failed,
							SETTINGS_KEEP_FOR_EVER, SETTINGS_KEEP_FOR_EVER, INT_MAX, PGC_USERSET,
							GUC_UNIT_S, NULL, NULL, NULL);
}

/* What is told about tasks.  A role must not be able to hide its own, so only superusers set it. */
static void
define_reports(void)
{
	DefineCustomIntVariable("pg_task.stat_max",
							"Sets the maximum number of queues that pg_stat_task counts, of all"
							" databases.",
							"When there are more, the others are counted together.",
							&Settings.stat_max, 1000, 10, SETTINGS_STAT_MAX, PGC_POSTMASTER, 0,
							NULL, NULL, NULL);
	DefineCustomEnumVariable("pg_task.log", "Sets which events of tasks are logged.",
							 "Each value includes those before it: none, failures, ends, all.",
							 &Settings.log, LOG_TASKS_NONE, log_options, PGC_SUSET, 0, NULL, NULL,
							 NULL);
	DefineCustomIntVariable("pg_task.log_min_duration",
							"Sets the duration from which on the end of a task's run is logged.",
							"-1 turns this off, 0 logs all ends of runs.",
							&Settings.log_min_duration, -1, -1, INT_MAX, PGC_SUSET, GUC_UNIT_MS,
							NULL, NULL, NULL);
}

/* Defaults for what one run does. */
static void
define_run_defaults(void)
{
	DefineCustomEnumVariable(
		"pg_task.synchronous_commit", "Sets synchronous_commit for the commit of a task.",
		"\"database\" means that the server's own setting applies.", &variables.synchronous_commit,
		SETTINGS_COMMIT_AS_DATABASE, commit_options, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("pg_task.response_limit",
							"Sets the maximum length of the response, error and notice of a task.",
							"Longer text is truncated and marked as truncated.",
							&Settings.response_limit, 16 * 1024 * 1024, 64, 512 * 1024 * 1024,
							PGC_SUSET, GUC_UNIT_BYTE, NULL, NULL, NULL);
	DefineCustomIntVariable("pg_task.timeout",
							"Sets the maximum duration of a task whose column \"timeout\" is NULL.",
							"Zero means no limit.", &Settings.timeout, 0, 0, INT_MAX, PGC_USERSET,
							GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("pg_task.batch",
							"Sets the maximum number of short tasks that are run and committed"
							" together.",
							"One means that each task has its own transaction.", &Settings.batch, 1,
							1, SETTINGS_BATCH_MAX, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable(
		"pg_task.format",
		"Sets the format of the response of a task whose column \"format\" is NULL.", NULL,
		&Settings.format, RESULT_TEXT, format_options, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("pg_task.flow",
							   "Sets the workflow of the tasks that are inserted without one.",
							   "Empty means none.  In a task it is the workflow of the task.",
							   &variables.flow, "", PGC_USERSET, 0, check_flow, NULL, NULL);
	DefineCustomStringVariable("pg_task.id", "Shows the id of the task that the session runs.",
							   NULL, &variables.id, "", PGC_INTERNAL,
							   GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE | GUC_NO_RESET_ALL, NULL,
							   NULL, show_id);
}

/* Defaults for when a task runs: at first, again after a failure, and repeatedly. */
static void
define_time_defaults(void)
{
	DefineCustomIntVariable("pg_task.retry",
							"Sets the maximum number of retries of a task whose column \"retry\" is"
							" NULL.",
							NULL, &variables.task.retry, 0, 0, INT_MAX, PGC_USERSET, 0, NULL, NULL,
							NULL);
	DefineCustomIntVariable(
		"pg_task.delay",
		"Sets the delay before the first retry of a task whose column \"delay\" is NULL.", NULL,
		&variables.task.delay, 10 * 1000, 0, INT_MAX, PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomRealVariable("pg_task.backoff",
							 "Sets the factor by which the delay grows with each further retry of a"
							 " task whose column \"backoff\" is NULL.",
							 NULL, &variables.task.backoff, 2, 0, 1000000, PGC_USERSET, 0, NULL,
							 NULL, NULL);
	DefineCustomIntVariable("pg_task.active",
							"Sets the time after its planned time within which a task whose column"
							" \"active\" is NULL may start.",
							"Zero means no limit.", &variables.task.active, 0, 0, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomEnumVariable("pg_task.missed",
							 "Sets which of the runs that a repeating task has missed it makes up"
							 " for, if its column \"missed\" is NULL.",
							 NULL, &variables.task.missed, MISSED_ONE, missed_options, PGC_USERSET,
							 0, NULL, NULL, NULL);
	DefineCustomStringVariable("pg_task.timezone",
							   "Sets the time zone of the repeats of a task whose column"
							   " \"timezone\" is NULL.",
							   "Empty means the TimeZone of the role of the task.",
							   &variables.timezone, "", PGC_USERSET, 0, check_timezone, NULL, NULL);
}

void
settings_define(void)
{
	define_databases();
	define_limits();
	define_protection();
	define_order();
	define_history();
	define_reports();
	define_run_defaults();
	define_time_defaults();
	MarkGUCPrefixReserved("pg_task");
}

/*
 * Return the entries of pg_task.database as a List of Target in the current memory context.  NIL
 * means no database.
 */
List *
settings_targets(void)
{
	List *targets;

	if (!targets_parse(variables.database, &targets))
		elog(ERROR, "pg_task.database was not checked");
	return targets;
}

/*
 * Return the current settings for tasks.  To be called before the process is connected: the
 * connection loads the settings of the database and of the role that it is connected as.
 */
SettingsTask
settings_task(void)
{
	SettingsTask result = variables.task;

	result.batch = Settings.batch;
	result.format = Settings.format;
	result.timezone = session_timezone;
	result.task_timezone = variables.timezone[0] ? pg_tzset(variables.timezone) : NULL;
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
	if (variables.synchronous_commit == SETTINGS_COMMIT_AS_DATABASE)
		return NULL;
	return option_name(commit_options, variables.synchronous_commit);
}

/* Return the time zone of repeats and cron expressions where the column "timezone" is NULL. */
pg_tz *
settings_timezone(const SettingsTask *settings)
{
	return settings->task_timezone ? settings->task_timezone : settings->timezone;
}

/* Return the SettingsMissed of this name; the other value if the name is unknown. */
SettingsMissed
settings_missed(const char *name, SettingsMissed other)
{
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

/* May an executor keep the library in this file (relative to the server's library directory)? */
bool
settings_keeps_library(const char *file)
{
	List *names;
	ListCell *cell;
	bool keeps = false;

	if (!parse_libraries(variables.keep_libraries, &names))
		return false;
	foreach(cell, names)
	{
		const char *name = lfirst(cell);
		size_t length = strlen(name);

		keeps |= strncmp(file, name, length) == 0 &&
				 (file[length] == '\0' || strcmp(file + length, DLSUFFIX) == 0);
	}
	list_free_deep(names);
	return keeps;
}

/*
 * Do the zones that this process has loaded take too much memory?  The server keeps each until the
 * process exits, and a user can name any number of them: "A1", "A1:01", ...
 */
bool
zones_fill_memory(void)
{
	MemoryContext context = TopMemoryContext->firstchild;

	for (; context; context = context->nextchild)
		if (context->ident && strcmp(context->ident, "Timezones") == 0)
			return MemoryContextMemAllocated(context, true) > ZONES_MAX;
	return false;
}
