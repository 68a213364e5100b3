/*
 * ddl.c
 *		Statements that define the tables of pg_task: the task table and those beside it.
 *
 * This file knows none of these tables, their columns or triggers.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"

#include "task/ddl.h"
#include "task/subtransaction.h"

/*
 * May others than the owner be the cause of an error in CREATE TABLE?  Something of theirs has the
 * name already, or an open transaction of theirs is about to create it; or an event trigger refuses
 * the command.
 */
static bool
is_caused_by_others(int sqlstate)
{
	int category = ERRCODE_TO_CATEGORY(sqlstate);

	return category != ERRCODE_INSUFFICIENT_RESOURCES && category != ERRCODE_SYSTEM_ERROR &&
		   category != ERRCODE_OPERATOR_INTERVENTION;
}

/*
 * Call "create", which creates a table, in a subtransaction.  Returns NULL; or what has gone wrong,
 * if others may be the cause: they are not to stop the caller, who goes on without the table.
 */
char *
ddl_try(void (*create)(void *arg), void *arg)
{
	ErrorData *error = subtransaction_try(create, arg);

	if (error == NULL)
		return NULL;
	if (!is_caused_by_others(error->sqlerrcode))
		ReThrowError(error);
	return psprintf("It could not be created: %s", error->message);
}

/* Run one statement, which may also return rows. */
void
ddl_run(const char *sql)
{
	int code = SPI_execute(sql, false, 0);

	if (code < 0)
		elog(ERROR, "could not execute \"%s\": %s", sql, SPI_result_code_string(code));
}

/* Does the query return a row?  Its parameters are an oid and a text. */
bool
ddl_row_exists(const char *sql, Oid oid, const char *text)
{
	Oid types[] = {OIDOID, TEXTOID};
	Datum values[] = {ObjectIdGetDatum(oid), CStringGetTextDatum(text)};
	int code = SPI_execute_with_args(sql, 2, types, values, NULL, true, 1);

	if (code < 0)
		elog(ERROR, "could not execute \"%s\": %s", sql, SPI_result_code_string(code));
	return SPI_processed > 0;
}

/* Does the table have a trigger of this name? */
static bool
has_trigger(Oid relid, const char *trigger)
{
	return ddl_row_exists("SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = $1 AND tgname = $2",
						  relid, trigger);
}

/*
 * Has the table a trigger of this name that it, or a partition, does not fire for replicated rows?
 * ENABLE TRIGGER leaves one so, also that of pg_restore --disable-triggers.  One that the owner of
 * the table has disabled stays disabled.
 */
static bool
misses_replicated_rows(Oid relid, const char *trigger)
{
	return ddl_row_exists("SELECT FROM pg_catalog.pg_trigger AS t"
						  " CROSS JOIN (SELECT $1 AS relid"
						  "              UNION"
						  "             SELECT relid FROM pg_catalog.pg_partition_tree($1)) AS m"
						  "  JOIN pg_catalog.pg_trigger AS p ON p.tgrelid = m.relid"
						  " WHERE t.tgrelid = $1 AND t.tgname = $2 AND t.tgenabled IN ('O', 'A')"
						  "   AND p.tgname = $2 AND p.tgenabled = 'O'",
						  relid, trigger);
}

/*
 * Create a trigger, unless the table has one of this name.  It also fires under
 * session_replication_role = replica: replicated rows must reach the scheduler.  "table" is the
 * name of the table for SQL; the definition has a %s for it.
 */
void
ddl_add_trigger(Oid relid, const char *table, const char *trigger, const char *definition)
{
	if (!has_trigger(relid, trigger))
		ddl_run(psprintf("CREATE TRIGGER %s %s", trigger, psprintf(definition, table)));
	else if (!misses_replicated_rows(relid, trigger))
		return;
	ddl_run(psprintf("ALTER TABLE %s ENABLE ALWAYS TRIGGER %s", table, trigger));
}

/*
 * Create a policy, and enable row security, unless the table has a policy of this name: this is
 * done once, so the owner may disable row security.
 */
void
ddl_add_policy(Oid relid, const char *table, const char *policy, const char *condition)
{
	if (ddl_row_exists("SELECT FROM pg_catalog.pg_policy WHERE polrelid = $1 AND polname = $2",
					   relid, policy))
		return;
	ddl_run(psprintf("CREATE POLICY %s ON %s USING (%s)", policy, table, condition));
	ddl_run(psprintf("ALTER TABLE %s ENABLE ROW LEVEL SECURITY", table));
}
