/*
 * refused.c
 *		Refused rows: rows that a trigger or a constraint does not let the scheduler
 *		write.
 *
 * The scheduler writes many rows in one transaction.  When one of them is refused, the transaction
 * fails, and as many rows as it had are written one by one, until the refused row is found.  That
 * row is skipped for a while; the others are written.
 *
 * This file is plain memory of the scheduler.
 */
#include "postgres.h"

#include "utils/hsearch.h"

#include "scheduler/refused.h"

typedef struct RefusedRow
{
	/* key of the hash table: in a partitioned table the id alone may not be unique */
	TaskPlace place;
	MonoTime until;
} RefusedRow;

static HTAB *all = NULL; /* NULL: none */

static struct
{
	TaskPlace first; /* first row of the batch that is being written */
	int count;
	int singly; /* number of rows still to be written one by one */
} batches[REFUSED_BATCHES];

/* Is this row refused, and to be skipped for now? */
bool
refused_has(TaskPlace place, MonoTime now)
{
	RefusedRow *entry = all ? hash_search(all, &place, HASH_FIND, NULL) : NULL;

	if (entry == NULL)
		return false;
	if (clock_is_before(now, entry->until))
		return true;
	(void) hash_search(all, &place, HASH_REMOVE, NULL);
	return false;
}

/* Return the number of refused rows. */
int
refused_count(void)
{
	return all ? (int) hash_get_num_entries(all) : 0;
}

/*
 * Forget all refused rows: they may be accepted now, because the table has changed or time has
 * passed.
 */
void
refused_forget(void)
{
	if (all)
		hash_destroy(all);
	all = NULL;
}

/* Forget the rows whose time to be skipped is over. */
void
refused_tidy(MonoTime now)
{
	HASH_SEQ_STATUS scan;
	RefusedRow *entry;

	if (all == NULL)
		return;
	hash_seq_init(&scan, all);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (!clock_is_before(now, entry->until))
			(void) hash_search(all, &entry->place, HASH_REMOVE, NULL);
	if (hash_get_num_entries(all) == 0)
		refused_forget();
}

/* Must the next batch be a single row? */
bool
refused_singly(RefusedBatch which)
{
	return batches[which].singly > 0;
}

/* Add a row to the batch. */
void
refused_add(RefusedBatch which, TaskPlace place)
{
	if (batches[which].count++ == 0)
		batches[which].first = place;
}

/* The batch is committed. */
void
refused_batch_written(RefusedBatch which)
{
	if (batches[which].count > 0 && batches[which].singly > 0)
		batches[which].singly--;
	batches[which].count = 0;
}

static void
set_aside(TaskPlace place, MonoTime until)
{
	HASHCTL ctl = {.keysize = sizeof(TaskPlace), .entrysize = sizeof(RefusedRow)};
	RefusedRow *entry;

	if (all == NULL)
		all = hash_create("pg_task rows set aside", 64, &ctl, HASH_ELEM | HASH_BLOBS);
	entry = hash_search(all, &place, HASH_ENTER, NULL);
	entry->until = until;
}

/*
 * The transaction failed, perhaps with batches in it.  If a row is at fault, the rows are written
 * one by one from now on; if the batch was a single row, that row is skipped until "until".
 * Returns true if the other rows should be tried at once.
 */
bool
refused_batch_failed(MonoTime until, bool row_at_fault)
{
	bool failed = false;
	int i;

	for (i = 0; i < REFUSED_BATCHES; i++)
	{
		int written = batches[i].count;

		batches[i].count = 0;
		if (written == 0 || !row_at_fault)
			continue;
		failed = true;
		batches[i].singly = written > 1 ? written : Max(batches[i].singly - 1, 0);
		if (written == 1)
			set_aside(batches[i].first, until);
	}
	return failed;
}
