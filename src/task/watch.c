/*
 * watch.c
 *		Watches the task table, and the tables that belong to it, for changes of their
 *		definitions.
 *
 * The server reports changes by invalidation messages.  A process receives them when it takes a
 * lock on a relation: the caller locks the table first (table_lock), then asks.
 *
 * This file locks nothing, and does not know why a table could not be a task table.
 */
#include "postgres.h"

#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "compat.h"
#include "task/relation.h"
#include "task/watch.h"

/*
 * What this process watches: one table.  Static, because callbacks (pg_task.c) write it.
 */
static struct
{
	Oid relid;
	List *relatives; /* oids of partitions, of parents, of the tables beside it */
	bool changed;	 /* any of them may have changed since the watch began */
	uint32 changes;	 /* how often that was reported, since this process began */
} watch;

/* Does this table belong to the watched one? */
static bool
is_relative(Oid relid)
{
	return list_member_oid(watch.relatives, relid);
}

static void
note_change(void)
{
	watch.changed = true;
	watch.changes++;
}

/* A relation has changed.  InvalidOid stands for all relations. */
void
watch_relation_invalidated(Oid relid)
{
	if (relid == watch.relid || relid == InvalidOid || is_relative(relid))
		note_change();
}

/* A schema may have been renamed; that does not invalidate the relations in it. */
void
watch_schema_invalidated(void)
{
	note_change();
}

/*
 * Watch a table, and no longer the table before: from now on watch_changed returns whether it may
 * have changed.  The caller holds a lock on the table, and reads the catalogs after this, so a
 * change that it does not see is reported.
 */
void
watch_begin(Oid relid)
{
	Assert(compat_relation_locked(relid));
	watch.relid = relid;
	list_free(watch.relatives);
	watch.relatives = NIL;
	watch.changed = false;
}

/* Watch a table as well that belongs to the watched one; InvalidOid: none. */
void
watch_also(Oid relid)
{
	MemoryContext caller;

	if (!OidIsValid(relid) || is_relative(relid))
		return;
	caller = MemoryContextSwitchTo(TopMemoryContext);
	watch.relatives = lappend_oid(watch.relatives, relid);
	MemoryContextSwitchTo(caller);
}

/* May the watched table have changed, or one that belongs to it, since the watch began? */
bool
watch_changed(void)
{
	return watch.changed;
}

/*
 * A counter of the changes that were reported to this process.  It also tells of those between the
 * last call of watch_changed and the next watch_begin.
 */
uint32
watch_changes(void)
{
	return watch.changes;
}

/*
 * Has this transaction changed the watched table, or one that belongs to it?  Called when the
 * table cannot be served any more.
 */
bool
watch_changed_here(void)
{
	ListCell *cell;

	foreach(cell, watch.relatives)
		if (relation_changed_here(lfirst_oid(cell)))
			return true;
	return relation_changed_here(watch.relid);
}

/*
 * May a statement on the watched table use this relation?  Not if it is a partition that was
 * attached after the watch began.
 */
bool
watch_covers(Oid relid)
{
	return relid == watch.relid || is_relative(relid) || relation_root(relid) != watch.relid;
}
