/*
 * refused.c
 *		Refused rows: rows that a trigger or a constraint does not let the scheduler
 *		write.
 *
 * The scheduler writes many rows in one transaction.  When one of them is refused, the transaction
 * fails, and as many rows as it had are written one by one, until the refused row is found.  That
 * row is skipped for a while; the others are written.  refused_next_try is that rule; orphans.c and
 * unstarted.c, which keep their rows themselves, follow it as well.
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

/* The rows of one kind that are being written. */
typedef struct Batch
{
	TaskPlace first;
	int count;
	int singly; /* number of rows still to be written one by one */
} Batch;

/* Static, because later iterations skip the rows, and because an error may interrupt a batch. */
static struct
{
	HTAB *rows; /* of RefusedRow; NULL: none */
	Batch batches[REFUSED_BATCHES];
} refused;

/* Is this row refused, and to be skipped for now? */
bool
refused_has(TaskPlace place, MonoTime now)
{
	RefusedRow *entry = refused.rows ? hash_search(refused.rows, &place, HASH_FIND, NULL) : NULL;

	if (entry == NULL)
		return false;
	if (clock_is_before(now, entry->until))
		return true;
	(void) hash_search(refused.rows, &place, HASH_REMOVE, NULL);
	return false;
}

/* Return the number of refused rows. */
int
refused_count(void)
{
	return refused.rows ? (int) hash_get_num_entries(refused.rows) : 0;
}

/*
 * Forget all refused rows: they may be accepted now, because the table has changed or time has
 * passed.
 */
void
refused_forget(void)
{
	HTAB *rows = refused.rows;

	refused.rows = NULL;
	if (rows)
		hash_destroy(rows);
}

/* Forget the rows whose time to be skipped is over. */
void
refused_tidy(MonoTime now)
{
	HASH_SEQ_STATUS scan;
	RefusedRow *entry;

	if (refused.rows == NULL)
		return;
	hash_seq_init(&scan, refused.rows);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (!clock_is_before(now, entry->until))
			(void) hash_search(refused.rows, &entry->place, HASH_REMOVE, NULL);
	if (hash_get_num_entries(refused.rows) == 0)
		refused_forget();
}

/* Must the next batch be a single row? */
bool
refused_singly(RefusedBatch which)
{
	return refused.batches[which].singly > 0;
}

/* Add a row to the batch. */
void
refused_batch_add(RefusedBatch which, TaskPlace place)
{
	Batch *batch = &refused.batches[which];

	if (batch->count++ == 0)
		batch->first = place;
}

/* Return the number of rows in the batches of the open transaction, and the id of one of them. */
int
refused_batch_rows(int64 *id)
{
	int rows = 0;
	int i;

	for (i = 0; i < REFUSED_BATCHES; i++)
	{
		if (refused.batches[i].count > 0)
			*id = refused.batches[i].first.id;
		rows += refused.batches[i].count;
	}
	return rows;
}

/* The batch is committed. */
void
refused_batch_written(RefusedBatch which)
{
	Batch *batch = &refused.batches[which];

	if (batch->count > 0 && batch->singly > 0)
		batch->singly--;
	batch->count = 0;
}

/* The row is refused: skip it until then. */
static void
skip_row_until(TaskPlace place, MonoTime until)
{
	HASHCTL ctl = {.keysize = sizeof(TaskPlace), .entrysize = sizeof(RefusedRow)};
	RefusedRow *entry;

	if (refused.rows == NULL)
		refused.rows = hash_create("pg_task refused rows", 64, &ctl, HASH_ELEM | HASH_BLOBS);
	entry = hash_search(refused.rows, &place, HASH_ENTER, NULL);
	entry->until = until;
}

/* Decide how the rows of a batch are written after its transaction has failed. */
BatchRetry
refused_next_try(const BatchFailure *failure, int rows)
{
	if (!failure->row_at_fault || rows == 0)
		return RETRY_TOGETHER;
	return rows == 1 ? RETRY_LATER : RETRY_SINGLY;
}

/*
 * The transaction failed, perhaps with batches in it.  Returns true if other rows of them should be
 * tried at once.
 */
bool
refused_batches_failed(const BatchFailure *failure)
{
	bool at_once = false;
	int i;

	for (i = 0; i < REFUSED_BATCHES; i++)
	{
		Batch *batch = &refused.batches[i];
		int count = batch->count;
		BatchRetry retry = refused_next_try(failure, count);

		/* before anything can fail */
		batch->count = 0;
		if (retry == RETRY_TOGETHER)
			continue;
		at_once = true;
		batch->singly = retry == RETRY_SINGLY ? count : Max(batch->singly - 1, 0);
		if (retry == RETRY_LATER)
			skip_row_until(batch->first, failure->retry_at);
	}
	return at_once;
}
