/*
 * location.c
 *		Where the task table of a database is, whether it is created, and how often it is scanned:
 *		the settings of a database, with their check hooks.
 *
 * This file uses neither shared memory nor SPI, and looks nothing up in catalogs.
 */
#include "postgres.h"

#include "utils/guc.h"

#include "compat.h"
#include "settings.h"

#define PERIOD_MAX (24 * 60 * 60 * 1000)

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

/* The server writes them, and the hooks of this file the sources. */
static struct
{
	char *names[LOCATION_NAMES];
	GucSource sources[LOCATION_NAMES]; /* where each of them was set */
	bool create;
	int period; /* milliseconds */
} variables = {
	.create = true,
	.period = 1000,
};

static bool
check_period(int *newval pg_attribute_unused(), void **extra pg_attribute_unused(),
			 GucSource source)
{
	return settings_check_source(source, "pg_task.period");
}

static bool
check_create(bool *newval pg_attribute_unused(), void **extra pg_attribute_unused(),
			 GucSource source)
{
	return settings_check_source(source, "pg_task.create_table");
}

/* Check a name of the place of the table, and keep with it where it was set. */
static bool
check_location(const char *value, void **extra, GucSource source, const char *setting)
{
	if (strlen(value) >= NAMEDATALEN)
	{
		GUC_check_errdetail("A name is at most %d bytes long.", NAMEDATALEN - 1);
		return false;
	}
	if (!settings_check_source(source, setting))
		return false;
	*extra = compat_guc_malloc(sizeof(GucSource));
	if (*extra)
		*(GucSource *) *extra = source;
	return *extra != NULL;
}

static bool
check_schema_name(char **newval, void **extra, GucSource source)
{
	return check_location(*newval, extra, source, "pg_task.schema_name");
}

static bool
check_table_name(char **newval, void **extra, GucSource source)
{
	if (**newval != '\0')
		return check_location(*newval, extra, source, "pg_task.table_name");
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

void
location_define(void)
{
	DefineCustomStringVariable("pg_task.schema_name", "Sets the schema of the task table.",
							   "Empty means the default creation schema of the role.  The schema is"
							   " created if it does not exist.",
							   &variables.names[SCHEMA_NAME], "", PGC_USERSET, 0, check_schema_name,
							   assign_schema_name, show_schema_name);
	DefineCustomStringVariable("pg_task.table_name", "Sets the name of the task table.",
							   "The table is created if it does not exist.",
							   &variables.names[TABLE_NAME], "task", PGC_USERSET, 0,
							   check_table_name, assign_table_name, show_table_name);
	DefineCustomStringVariable("pg_task.schema", "Older name of \"pg_task.schema_name\".", NULL,
							   &variables.names[SCHEMA_OLDER], "", PGC_USERSET, 0,
							   check_schema_name, assign_older_schema_name, show_schema_name);
	DefineCustomStringVariable("pg_task.table", "Older name of \"pg_task.table_name\".", NULL,
							   &variables.names[TABLE_OLDER], "task", PGC_USERSET, 0,
							   check_table_name, assign_older_table_name, show_table_name);
	DefineCustomBoolVariable("pg_task.create_table", "Creates the task table if it does not exist.",
							 "If it is off, a task table that exists is served, and where there is"
							 " none nothing is created.",
							 &variables.create, true, PGC_USERSET, 0, check_create, NULL, NULL);
	DefineCustomIntVariable(
		"pg_task.period", "Sets the maximum time between two scans of the task table.", NULL,
		&variables.period, 1000, 1, PERIOD_MAX, PGC_USERSET, GUC_UNIT_MS, check_period, NULL, NULL);
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
