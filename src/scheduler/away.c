/*
 * away.c
 *		The tasks of a table that is away from home are held back: the database is a copy of the one
 *		for which they were planned, or was restored from a dump of it.
 *
 * While the table is away, the scheduler reads and writes none of its rows, and adds nothing to the
 * table.  This file only looks whether somebody has said that the tasks may run (pg_task_release).
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"

#include "scheduler/away.h"
#include "scheduler/dispatch.h"
#include "scheduler/scheduler.h"
#include "scheduler/work.h"
#include "shared/shared.h"
#include "task/home.h"

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
void
away_table_prepared(const TaskTable *table)
{
	bool known = shared_database_set_away(MyDatabaseId, table->away);

	if (table->away && !known)
		log_away(table);
	else if (!table->away && known)
		ereport(LOG, (errmsg("pg_task runs the tasks of %s in database \"%s\" from now on",
							 table->name, MyScheduler->database),
					  errhidecontext(true)));
	MyScheduler->away = table->away;
	if (table->away)
		dispatch_publish_none();
}

/*
 * Is the table still away?  If not, the next iteration prepares it.  The mark itself is read: the
 * commit that sets it wakes this process before it reports a change of the table.
 */
void
away_look(void)
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
