/*
 * planned.c
 *		Rows that this transaction has planned or stopped, for the figures of pg_stat_task.
 *
 * They are counted per queue and role, and added to the shared figures after the commit.  As hints,
 * they are kept when a subtransaction is rolled back: no trigger tells which rows went with it.
 *
 * This file reads no row and no catalog.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "compat.h"
#include "session/planned.h"
#include "settings.h"

/* The counts of a queue and role.  Only planned and stopped rows are counted here. */
typedef struct PlannedEntry
{
	StatKey key;
	int64 planned;
	int64 stopped;
} PlannedEntry;

/*
 * Static, because it collects from all statements of a transaction.  Most transactions write rows
 * of one queue and role: these need no hash table.
 */
static struct
{
	bool counted;		/* something was counted */
	PlannedEntry first; /* for the queue and role of the first row */
	HTAB *others;		/* for all others, in TopTransactionContext; NULL: none */
	PlannedEntry *last; /* the entry of the last row; NULL: none */
} planned;

static HTAB *
create_entries(void)
{
	HASHCTL ctl = {.keysize = sizeof(StatKey),
				   .entrysize = sizeof(PlannedEntry),
				   .hcxt = TopTransactionContext};

	return hash_create("pg_task planned rows", 16, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/*
 * Find the entry of a key, or make one.  NULL if there are as many as pg_stat_task has: what is
 * counted for more of them would not stay there.
 */
static PlannedEntry *
find_entry(const StatKey *key)
{
	PlannedEntry *entry;
	bool found;

	if (!planned.counted)
	{
		planned.counted = true;
		planned.first.key = *key;
		planned.first.planned = planned.first.stopped = 0;
	}
	if (memcmp(&planned.first.key, key, sizeof(StatKey)) == 0)
		return &planned.first;
	if (planned.others == NULL)
		planned.others = create_entries();
	if (hash_get_num_entries(planned.others) + 1 >= Statistics->size)
		return hash_search(planned.others, key, HASH_FIND, NULL);
	entry = hash_search(planned.others, key, HASH_ENTER, &found);
	if (!found)
		entry->planned = entry->stopped = 0;
	return entry;
}

/* Is this the key of the last row?  Most statements write rows of one queue. */
static bool
is_last(Oid role, const char *queue, Size length)
{
	const StatKey *key = planned.last ? &planned.last->key : NULL;

	return key && key->role == role && memcmp(key->queue, queue, length) == 0 &&
		   key->queue[length] == '\0';
}

/* Count a row that waits from now on, or, with another counter, that a user has stopped. */
void
planned_count(Oid role, const text *queue, StatCounter counter)
{
	Size length = statistics_clip(VARDATA_ANY(queue), VARSIZE_ANY_EXHDR(queue));

	Assert(counter == STAT_PLANNED || counter == STAT_STOPPED);
	if (!is_last(role, VARDATA_ANY(queue), length))
	{
		StatKey key = {.database = MyDatabaseId, .role = role};

		memcpy(key.queue, VARDATA_ANY(queue), length);
		planned.last = find_entry(&key);
	}
	if (planned.last == NULL)
		return;
	if (counter == STAT_PLANNED)
		planned.last->planned++;
	else
		planned.last->stopped++;
}

static void
add_entry(const PlannedEntry *entry)
{
	StatCounts *counts = statistics_of(entry->key.database, entry->key.role, entry->key.queue);

	counts->counters[STAT_PLANNED] += entry->planned;
	counts->counters[STAT_STOPPED] += entry->stopped;
}

/* The transaction has committed.  Raises no error. */
void
planned_committed(void)
{
	HASH_SEQ_STATUS others;
	PlannedEntry *entry;

	if (!planned.counted)
		return;
	add_entry(&planned.first);
	if (planned.others)
	{
		hash_seq_init(&others, planned.others);
		while ((entry = hash_seq_search(&others)) != NULL)
			add_entry(entry);
	}
	(void) statistics_flush(true);
	planned_forget();
}

/* The transaction has ended. */
void
planned_forget(void)
{
	planned.counted = false;
	planned.others = NULL;
	planned.last = NULL;
}
