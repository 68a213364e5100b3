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

/*
 * Return what is wanted of a database that this entry of pg_task.database names, by itself or with
 * all others; NULL if it cannot be used, which is logged.  Templates are only taken by name.  A
 * datconnlimit of -2 marks a database whose DROP was interrupted.
 */
static Wanted *
want_database(const Target *target, HeapTuple tuple, Reports *unusable)
{
	Form_pg_database database = (Form_pg_database) GETSTRUCT(tuple);
	const char *name = NameStr(database->datname);
	bool usable = database->datallowconn && database->datconnlimit != -2;
	Oid user = target->role ? get_role_oid(target->role, true) : database->datdba;
	Wanted *wanted;

	if (target->excluded || (!target->database && (!usable || database->datistemplate)))
		return NULL;
	if (!usable)
		warn_once(
			unusable,
			psprintf("database \"%s\" in \"pg_task.database\" does not allow connections", name),
			"It has no task table until it does.");
	else if (!OidIsValid(user))
		warn_once(unusable,
				  psprintf("role \"%s\" in \"pg_task.database\" does not exist", target->role),
				  psprintf("Database \"%s\" has no task table until it does.", name));
	if (!usable || !OidIsValid(user))
		return NULL;
	wanted = palloc(sizeof(Wanted));
	wanted->database = database->oid;
	wanted->user = user;
	strlcpy(wanted->name, name, NAMEDATALEN);
	wanted->version = HeapTupleHeaderGetRawXmin(tuple->t_data);
	return wanted;
}

/* Within a transaction: read the catalog of databases. */
static List *
find_wanted(Reports *unusable)
{
	MemoryContext caller = CurrentMemoryContext;
	List *targets = settings_targets();
	List *found = NIL;
	List *result = NIL;
	Relation rel = table_open(DatabaseRelationId, AccessShareLock);
	TableScanDesc scan = table_beginscan_catalog(rel, 0, NULL);
	HeapTuple tuple;
	ListCell *cell;

	while (HeapTupleIsValid(tuple = heap_getnext(scan, ForwardScanDirection)))
	{
		const char *name = NameStr(((Form_pg_database) GETSTRUCT(tuple))->datname);
		const Target *target = targets_find(targets, name);
		Wanted *wanted;

		MemoryContextSwitchTo(caller);
		if (target == NULL)
			continue;
		found = lappend(found, unconstify(Target *, target));
		wanted = want_database(target, tuple, unusable);
		if (wanted)
			result = lappend(result, wanted);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
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
	return result;
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
