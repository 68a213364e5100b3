/*
 * aside.c
 *		Rows that cannot be written: found in a batch, and set aside for a while.
 *
 * The scheduler writes many rows in one transaction.  When a trigger or a
 * constraint of the user's refuses one of them, as many are written one by one until
 * that is found; it is left alone for a while, and the others do not suffer.
 *
 * This room is plain memory of the scheduler's.
 */
#include "postgres.h"

#include "nodes/pg_list.h"
#include "utils/memutils.h"

#include "aside.h"

typedef struct Aside
{
	int64 id;
	TimestampTz until;
} Aside;

static List *all = NIL;

static int64 first; /* of the batch that is being written */
static int count = 0;
static int singly = 0; /* so many rows are to be written one by one */

/* Is this row left alone? */
bool
aside_has(int64 id, TimestampTz now)
{
	ListCell *cell;

	foreach(cell, all)
	{
		Aside *entry = lfirst(cell);

		if (entry->until <= now)
		{
			all = foreach_delete_current(all, cell);
			pfree(entry);
		}
		else if (entry->id == id)
			return true;
	}
	return false;
}

/* Is any? */
bool
aside_any(void)
{
	return all != NIL;
}

int
aside_count(void)
{
	return list_length(all);
}

/* The table has changed, perhaps for the better: no row is left alone. */
void
aside_forget(void)
{
	list_free_deep(all);
	all = NIL;
}

/* Is the next batch to be of one row? */
bool
aside_singly(void)
{
	return singly > 0;
}

/* One more row in the batch. */
void
aside_add(int64 id)
{
	if (count++ == 0)
		first = id;
}

/* The batch is committed. */
void
aside_written(void)
{
	if (count > 0 && singly > 0)
		singly--;
	count = 0;
}

/*
 * An error ended the batch, if there was one.  True when the others should be tried at
 * once, for the fault was of one row.
 */
bool
aside_failed(TimestampTz until, bool row_at_fault)
{
	int written = count;
	MemoryContext old;
	Aside *entry;

	count = 0;
	if (written == 0 || !row_at_fault)
		return false;
	if (written > 1)
	{
		singly = written;
		return true;
	}
	singly = Max(singly - 1, 0);
	old = MemoryContextSwitchTo(TopMemoryContext);
	entry = palloc(sizeof(Aside));
	entry->id = first;
	entry->until = until;
	all = lappend(all, entry);
	MemoryContextSwitchTo(old);
	return true;
}
