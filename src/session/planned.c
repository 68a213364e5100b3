/*
 * planned.c
 *		Rows that this transaction has planned or stopped, for the figures of pg_stat_task.
 *
 * They are counted per queue, and added to the shared figures after the commit.  As hints, they are
 * kept when a subtransaction is rolled back: no trigger tells which rows went with it.
 *
 * This file reads no row and no catalog.
 */
#include "postgres.h"

#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "compat.h"
#include "session/planned.h"

/* The counts of a queue. */
typedef struct PlannedEntry
{
	char queue[TASK_QUEUE_MAX + 1];
	int64 planned;
	int64 stopped;
} PlannedEntry;

/*
 * Static, because it collects from all statements of a transaction.  Most transactions write rows
 * of one queue: these need no hash table.
 */
static struct
{
	PlannedEntry first; /* for the queue of the first row */
	HTAB *others;		/* for all others, in TopTransactionContext; NULL: none */
	PlannedEntry *last; /* the entry of the last row; NULL: nothing was counted */
} planned;

/*
 * Find the entry of a queue, or make one.  NULL if there are as many as pg_stat_task has: what is
 * counted for more of them in one transaction is lost.
 */
static PlannedEntry *
find_entry(const char *queue)
{
	HASHCTL ctl = {.keysize = sizeof(planned.first.queue),
				   .entrysize = sizeof(PlannedEntry),
				   .hcxt = TopTransactionContext};
	PlannedEntry *entry;
	bool found;

	if (planned.last == NULL)
	{
		planned.first = (PlannedEntry){0};
		strlcpy(planned.first.queue, queue, sizeof(planned.first.queue));
	}
	if (strcmp(planned.first.queue, queue) == 0)
		return &planned.first;
	if (planned.others == NULL)
		planned.others =
			hash_create("pg_task planned rows", 16, &ctl, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	if (hash_get_num_entries(planned.others) >= Statistics->size)
		return hash_search(planned.others, queue, HASH_FIND, NULL);
	entry = hash_search(planned.others, queue, HASH_ENTER, &found);
	if (!found)
		entry->planned = entry->stopped = 0;
	return entry;
}

/* Count a row that waits from now on, or, with another counter, that a user has stopped. */
void
planned_count(const text *queue, StatCounter counter)
{
	const char *data = VARDATA_ANY(queue);
	int length = statistics_clip(data, VARSIZE_ANY_EXHDR(queue));
	PlannedEntry *entry = planned.last;

	Assert(counter == STAT_PLANNED || counter == STAT_STOPPED);
	/* most statements write rows of one queue */
	if (entry == NULL || memcmp(entry->queue, data, length) != 0 || entry->queue[length] != '\0')
	{
		char name[TASK_QUEUE_MAX + 1];

		memcpy(name, data, length);
		name[length] = '\0';
		entry = find_entry(name);
		if (entry == NULL)
			return;
		planned.last = entry;
	}
	if (counter == STAT_PLANNED)
		entry->planned++;
	else
		entry->stopped++;
}

static void
add_entry(const PlannedEntry *entry)
{
	StatCounts *counts = statistics_of(entry->queue);

	counts->counters[STAT_PLANNED] += entry->planned;
	counts->counters[STAT_STOPPED] += entry->stopped;
}

/* The transaction has committed.  Raises no error. */
void
planned_committed(void)
{
	HASH_SEQ_STATUS others;
	PlannedEntry *entry;

	if (planned.last == NULL)
		return;
	add_entry(&planned.first);
	if (planned.others)
	{
		hash_seq_init(&others, planned.others);
		while ((entry = hash_seq_search(&others)) != NULL)
			add_entry(entry);
	}
	statistics_flush();
	planned_forget();
}

/* The transaction has ended. */
void
planned_forget(void)
{
	planned.others = NULL;
	planned.last = NULL;
}
