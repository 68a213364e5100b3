/*
 * wanted.c
 *		Which databases should have a scheduler?
 *
 * Those that the setting pg_task.database names, or all.  Reads shared catalogs only.  Runs in the
 * supervisor.
 *
 * This file starts nothing.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "utils/acl.h"
#include "utils/snapmgr.h"

#include "settings.h"
#include "supervisor/supervisor.h"

/* Log a warning, unless it was due in the last iteration as well. */
static void
warn_once(Reports *unusable, const char *message, const char *detail)
{
	if (report_due(unusable, message, 0))
		ereport(WARNING, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("%s", message),
						  errdetail("%s", detail)));
}

static Form_pg_database
form_of(HeapTuple tuple)
{
	return (Form_pg_database) GETSTRUCT(tuple);
}

static Wanted *
make_wanted(HeapTuple tuple, Oid user)
{
	Wanted *wanted = palloc(sizeof(Wanted));

	wanted->database = form_of(tuple)->oid;
	wanted->user = user;
	strlcpy(wanted->name, NameStr(form_of(tuple)->datname), NAMEDATALEN);
	wanted->version = HeapTupleHeaderGetRawXmin(tuple->t_data);
	return wanted;
}

/*
 * Does the database allow connections?  A datconnlimit of -2 marks one whose DROP was interrupted.
 */
static bool
is_usable(Form_pg_database database)
{
	return database->datallowconn && database->datconnlimit != -2;
}

/*
 * Add the database that an entry of pg_task.database names to the list, or log why it cannot be
 * used.
 */
static List *
want_target(List *wanted, const Target *target, HeapTuple tuple, Reports *unusable)
{
	Form_pg_database database = form_of(tuple);
	Oid user = database->datdba;

	if (!is_usable(database))
	{
		warn_once(unusable,
				  psprintf("database \"%s\" in \"pg_task.database\" does not allow connections",
						   NameStr(database->datname)),
				  "It has no task table until it does.");
		return wanted;
	}
	if (target->role)
		user = get_role_oid(target->role, true);
	if (OidIsValid(user))
		return lappend(wanted, make_wanted(tuple, user));
	warn_once(
		unusable, psprintf("role \"%s\" in \"pg_task.database\" does not exist", target->role),
		psprintf("Database \"%s\" has no task table until it does.", NameStr(database->datname)));
	return wanted;
}

/* Log the entries that name a database that does not exist. */
static void
report_missing(List *targets, const List *found, Reports *unusable)
{
	ListCell *cell;

	foreach(cell, targets)
	{
		const Target *target = lfirst(cell);

		if (target->database && !list_member_ptr(found, target))
			warn_once(unusable,
					  psprintf("database \"%s\" in \"pg_task.database\" does not exist",
							   target->database),
					  target->excluded ? "It will be left out when it does."
									   : "It gets a scheduler as soon as it does.");
	}
}

/* Within a transaction: read the catalog of databases. */
static List *
find_wanted(Reports *unusable)
{
	MemoryContext caller = CurrentMemoryContext;
	List *targets = settings_targets();
	List *found = NIL;
	List *wanted = NIL;
	Relation rel = table_open(DatabaseRelationId, AccessShareLock);
	TableScanDesc scan = table_beginscan_catalog(rel, 0, NULL);
	HeapTuple tuple;

	while (HeapTupleIsValid(tuple = heap_getnext(scan, ForwardScanDirection)))
	{
		Form_pg_database database = form_of(tuple);
		const Target *target = targets_find(targets, NameStr(database->datname));
		bool named = target && target->database;

		MemoryContextSwitchTo(caller);
		if (named)
			found = lappend(found, unconstify(Target *, target));
		if (target && !target->excluded &&
			(named || (is_usable(database) && !database->datistemplate)))
			wanted = want_target(wanted, target, tuple, unusable);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	report_missing(targets, found, unusable);
	return wanted;
}

/*
 * Return the databases of the cluster that should have a scheduler, as a List of Wanted in this
 * context.  "unusable" then holds the entries of pg_task.database that cannot be used, each as a
 * warning.
 */
List *
wanted_read(MemoryContext context, Reports *unusable)
{
	List *wanted = NIL;

	if (Settings.enabled)
	{
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		MemoryContextSwitchTo(context);
		wanted = find_wanted(unusable);
		PopActiveSnapshot();
		CommitTransactionCommand();
		MemoryContextSwitchTo(context);
	}
	report_end_unseen(unusable);
	return wanted;
}
