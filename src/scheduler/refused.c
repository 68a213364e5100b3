/*
 * refused.c
 *		Rows that cannot be written: found in a batch, and set aside for a while.
 *
 * The scheduler writes many rows in one transaction.  When a trigger or a
 * constraint of the user's refuses one of them, as many are written one by one until
 * that is found; it is left alone for a while, and the others do not suffer.
 *
 * This file is plain memory of the scheduler's.
 */
#include "postgres.h"

#include "utils/hsearch.h"

#include "scheduler/refused.h"

typedef struct RefusedRow
{
	TaskPlace place; /* hash key: where ids are not unique, rows differ in that */
	MonoTime until;
} RefusedRow;

static HTAB *all = NULL; /* NULL: none */

static struct
{
	TaskPlace first; /* of the batch that is being written */
	int count;
	int singly; /* so many rows are to be written one by one */
} batches[REFUSED_BATCHES];

/* Is this row left alone? */
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

/* How many are? */
int
refused_count(void)
{
	return all ? (int) hash_get_num_entries(all) : 0;
}

/* The table has changed, perhaps for the better, or time has passed: no row is left alone. */
void
refused_forget(void)
{
	if (all)
		hash_destroy(all);
	all = NULL;
}

/* Forget those whose time is over. */
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

/* Is the next batch to be of one row? */
bool
refused_singly(RefusedBatch which)
{
	return batches[which].singly > 0;
}

/* One more row in the batch. */
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
 * An error ended the batch, if there was one.  True when the others should be tried at
 * once, for the fault was of one row.
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
