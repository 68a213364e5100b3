/*
 * refused.c
 *		Rows that cannot be written: found in a batch, and set aside for a while.
 *
 * The scheduler writes many rows in one transaction.  When a trigger or a
 * constraint of the user's refuses one of them, as many are written one by one until
 * that is found; it is left alone for a while, and the others do not suffer.
 *
 * This room is plain memory of the scheduler's.
 */
#include "postgres.h"

#include "utils/hsearch.h"

#include "scheduler/refused.h"

typedef struct Aside
{
	TaskPlace place; /* hash key: where ids are not unique, rows differ in that */
	MonoTime until;
} Aside;

static HTAB *all = NULL; /* NULL: none */

static struct
{
	TaskPlace first; /* of the batch that is being written */
	int count;
	int singly; /* so many rows are to be written one by one */
} batches[ASIDE_BATCHES];

/* Is this row left alone? */
bool
aside_has(TaskPlace place, MonoTime now)
{
	Aside *entry = all ? hash_search(all, &place, HASH_FIND, NULL) : NULL;

	if (entry == NULL)
		return false;
	if (clock_is_before(now, entry->until))
		return true;
	(void) hash_search(all, &place, HASH_REMOVE, NULL);
	return false;
}

/* How many are? */
int
aside_count(void)
{
	return all ? (int) hash_get_num_entries(all) : 0;
}

/* The table has changed, perhaps for the better, or time has passed: no row is left alone. */
void
aside_forget(void)
{
	if (all)
		hash_destroy(all);
	all = NULL;
}

/* Forget those whose time is over. */
void
aside_tidy(MonoTime now)
{
	HASH_SEQ_STATUS scan;
	Aside *entry;

	if (all == NULL)
		return;
	hash_seq_init(&scan, all);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (!clock_is_before(now, entry->until))
			(void) hash_search(all, &entry->place, HASH_REMOVE, NULL);
	if (hash_get_num_entries(all) == 0)
		aside_forget();
}

/* Is the next batch to be of one row? */
bool
aside_singly(AsideBatch which)
{
	return batches[which].singly > 0;
}

/* One more row in the batch. */
void
aside_add(AsideBatch which, TaskPlace place)
{
	if (batches[which].count++ == 0)
		batches[which].first = place;
}

/* The batch is committed. */
void
aside_written(AsideBatch which)
{
	if (batches[which].count > 0 && batches[which].singly > 0)
		batches[which].singly--;
	batches[which].count = 0;
}

static void
set_aside(TaskPlace place, MonoTime until)
{
	HASHCTL ctl = {.keysize = sizeof(TaskPlace), .entrysize = sizeof(Aside)};
	Aside *entry;

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
aside_failed(MonoTime until, bool row_at_fault)
{
	bool failed = false;
	int i;

	for (i = 0; i < ASIDE_BATCHES; i++)
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
