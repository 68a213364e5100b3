/*
 * prepare.c
 *		The task table of this scheduler, and the settings of its database: read when the process
 *		begins, and again when they have changed.
 *
 * A table is away if its database is a copy of the one for which its tasks were planned, or was
 * restored from a dump of it.  Then the scheduler holds them back: it reads and writes no row, and
 * adds nothing to the table, until somebody says that they may run (pg_task_release).
 *
 * This file knows nothing of rows.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "scheduler/prepare.h"
#include "scheduler/work.h"
#include "settings.h"
#include "shared/shared.h"
#include "shared/slots.h"
#include "task/home.h"
#include "task/table.h"

/* A table beside the task table that cannot be used is looked at again after this time (ms). */
#define SIDE_AGAIN_MS 10000

/* Static, because later iterations compare with them. */
static uint32 settings_seen; /* change counter of the settings of the database */
static char *known_settings; /* as read_settings returns them; NULL: not read yet */
static MonoTime again_at;	 /* a table beside the task table could not be used: try again then */

/* The process is about to connect, with the settings of this moment. */
void
prepare_begin(void)
{
	settings_seen = shared_settings_of_database(MyScheduler->slot->database);
}

/* Publish the task table of this database, and log it: not again for each of its schedulers. */
static void
publish_table(TaskTable *table, const char *owner)
{
	SharedFindings found = shared_database_found(MyDatabaseId);
	bool news = found.relid != table->relid && table->relid != MyScheduler->last_relid;

	found.relid = table->relid;
	found.owner = table->owner;
	found.owner_code = Settings.owner_code;
	found.absent = false;
	shared_database_publish(MyDatabaseId, &found);
	if (news)
		ereport(LOG, (errmsg("pg_task has %s the task table %s of role \"%s\" in database \"%s\"",
							 table->created ? "created" : "found", table->name, owner,
							 MyScheduler->database),
					  errhidecontext(true)));
	MyScheduler->table = table;
	shared_scheduler_publish(MyScheduler->slot, table->relid, false);
}

/*
 * There is no task table, and pg_task.create_table is off: this process exits, and the database has
 * no scheduler until somebody asks for a table.
 */
static void
leave_without_table(void)
{
	SharedFindings found = shared_database_found(MyDatabaseId);
	bool news = !found.absent;

	found.absent = true;
	found.relid = InvalidOid;
	shared_database_publish(MyDatabaseId, &found);
	if (news)
		ereport(LOG,
				(errmsg("pg_task creates no task table in database \"%s\"", MyScheduler->database),
				 errdetail("The setting \"pg_task.create_table\" is off."),
				 errhint("ALTER DATABASE %s SET pg_task.create_table = on",
						 quote_identifier(MyScheduler->database)),
				 errhidecontext(true)));
	MyScheduler->absent = true;
	/* this sets the latch as well */
	scheduler_slot_leave(MyScheduler->slot);
}

/* Say so in the log, at first sight and after each start of the server. */
static void
log_away(const TaskTable *table)
{
	ereport(LOG, (errmsg("pg_task holds back the tasks of %s in database \"%s\"", table->name,
						 MyScheduler->database),
				  errdetail("The table comes from another database or server: this one is a copy"
							" of it, or was restored from a dump or a backup."),
				  errhint("Stop or delete what must not run here, and then \"SELECT"
						  " pg_task_release()\" in this database, as the owner of the table."),
				  errhidecontext(true)));
}

/* The table has been prepared: are its tasks to be held back? */
static void
note_away(const TaskTable *table)
{
	SharedFindings found = shared_database_found(MyDatabaseId);
	bool known = found.away;

	found.away = table->away;
	shared_database_publish(MyDatabaseId, &found);
	if (table->away && !known)
		log_away(table);
	else if (!table->away && known)
		ereport(LOG, (errmsg("pg_task runs the tasks of %s in database \"%s\" from now on",
							 table->name, MyScheduler->database),
					  errhidecontext(true)));
	MyScheduler->away = table->away;
}

/*
 * Return when the task table is to be prepared again, even if it does not change: for those beside
 * it, of which others may have the names.
 */
MonoTime
prepare_again_at(void)
{
	return again_at;
}

/* Prepare the task table.  Returns false if there is none. */
bool
prepare_table(void)
{
	SharedScheduler *slot = MyScheduler->slot;
	TaskTable *prepared;
	char *owner;

	shared_scheduler_publish(slot, InvalidOid, false);
	work_forget_table();
	work_begin("preparing the task table");
	prepared = table_prepare(&MyScheduler->settings, slot->user, MyScheduler->context);
	if (prepared == NULL)
	{
		work_end();
		leave_without_table();
		return false;
	}
	owner = GetUserNameFromId(prepared->owner, true);
	work_end();
	MemoryContextSetParent(prepared->context, TopMemoryContext);
	publish_table(prepared, owner ? owner : "");
	if (!OidIsValid(MyScheduler->last_relid))
		shared_wake_supervisor(); /* another scheduler may be started */
	if (prepared->code == NULL)
		report_end(&MyScheduler->owner_code, NULL);
	note_away(prepared);
	again_at = prepared->side_fault[SIDE_QUEUE] || prepared->side_fault[SIDE_RATE]
				   ? clock_plus_ms(clock_mono(), SIDE_AGAIN_MS)
				   : CLOCK_NEVER;
	return true;
}

/*
 * Is the table still away?  If not, the next iteration prepares it.  The mark itself is read: the
 * commit that sets it wakes this process before it reports a change of the table.
 */
void
prepare_look_away(void)
{
	HomeState home;

	work_begin("holding back the tasks of a copied database");
	home = home_find(MyScheduler->table->relid);
	work_end();
	if (home == HOME_AWAY)
		return;
	work_forget_table();
	SetLatch(MyLatch);
}

/*
 * Return what ALTER DATABASE has set for this database, of the settings that a scheduler reads when
 * it starts, as a text to compare.  Sets *disabled if pg_task.enabled is off among them.
 */
static char *
read_settings(bool *disabled)
{
	MemoryContext caller = CurrentMemoryContext;
	Oid types[] = {OIDOID};
	Datum values[] = {ObjectIdGetDatum(MyDatabaseId)};
	bool enabled = true;
	char *text;
	char *word;

	SPI_connect();
	if (SPI_execute_with_args(
			"SELECT coalesce(string_agg(c, ' '), ''),"
			"       max(split_part(c, '=', 2)) FILTER (WHERE n = 'pg_task.enabled')"
			"  FROM pg_db_role_setting AS s, unnest(s.setconfig) AS c, lower(split_part(c, '=', 1)) AS n"
			" WHERE s.setdatabase = $1 AND s.setrole = 0"
			"   AND n IN ('pg_task.enabled', 'pg_task.schema_name', 'pg_task.table_name',"
			"             'pg_task.schema', 'pg_task.table', 'pg_task.create_table',"
			"             'pg_task.period', 'pg_task.owner_code')",
			1, types, values, NULL, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read the settings of the database");
	text = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
	word = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2);
	*disabled = word && parse_bool(word, &enabled) && !enabled;
	text = MemoryContextStrdup(caller, text);
	SPI_finish();
	return text;
}

/* The settings of the database differ from those with which this process began, or disable it. */
static void
leave_for_settings(uint32 settings, bool disabled)
{
	if (disabled)
	{
		SharedFindings found = shared_database_found(MyDatabaseId);

		ereport(LOG, (errmsg("pg_task is disabled in database \"%s\"", MyScheduler->database),
					  errhidecontext(true)));
		found.disabled = true;
		found.settings = settings;
		shared_database_publish(MyDatabaseId, &found);
	}
	/* this sets the latch as well */
	scheduler_slot_leave(MyScheduler->slot);
}

/*
 * Look at the settings of the database, first of all and when they have changed.  If they concern
 * this process, it exits, and the next one begins with the new ones.  Returns true if so.
 */
bool
prepare_settings(void)
{
	uint32 settings = shared_settings_of_database(MyDatabaseId);
	bool first = known_settings == NULL;
	bool leaves;
	bool disabled;
	char *text;

	if (!first && settings == settings_seen)
		return false;
	work_begin("reading the settings of the database");
	text = read_settings(&disabled);
	work_end();
	if (first)
	{
		known_settings = MemoryContextStrdup(TopMemoryContext, text);
		/* it may have connected with older ones */
		leaves = disabled || settings != settings_seen;
	}
	else
		leaves = strcmp(text, known_settings) != 0;
	if (leaves)
		leave_for_settings(settings, disabled);
	settings_seen = settings;
	return leaves;
}
