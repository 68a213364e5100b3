/*
 * refused.c
 *		Refused rows: rows that a trigger or a constraint does not let the scheduler
 *		write.
 *
 * The scheduler writes many rows in one transaction, a batch.  When one of them is refused, the
 * transaction fails, and the next batch has a quarter of the rows, until it is the refused row
 * alone.  That row is skipped for a while; batches grow again.  All that writes rows does it so.
 *
 * This file is plain memory of the scheduler.
 */
#include "postgres.h"

#include "utils/hsearch.h"

#include "scheduler/refused.h"

/* A limit beyond this is none. */
#define LIMIT_MAX 4096

typedef struct RefusedRow
{
	/* key of the hash table: in a partitioned table the id alone may not be unique */
	TaskPlace place;
	RefusedBatch which;
	MonoTime until;
} RefusedRow;

typedef struct Batch
{
	TaskPlace first;
	int count; /* rows that are being written */
	int limit; /* after a failure: the next batch has at most this many rows; 0: no limit */
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

/* The ids of the rows of one kind that are to be skipped for now. */
int
refused_ids(RefusedBatch which, MonoTime now, int64 **ids)
{
	HASH_SEQ_STATUS scan;
	RefusedRow *entry;
	int count = 0;

	*ids = palloc((refused_count() + 1) * sizeof(int64));
	if (refused.rows == NULL)
		return 0;
	hash_seq_init(&scan, refused.rows);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (entry->which == which && clock_is_before(now, entry->until))
			(*ids)[count++] = entry->place.id;
	return count;
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

/* Forget the rows of one kind, or those whose time to be skipped is over. */
static void
forget_rows(RefusedBatch which, MonoTime now)
{
	HASH_SEQ_STATUS scan;
	RefusedRow *entry;

	if (refused.rows == NULL)
		return;
	hash_seq_init(&scan, refused.rows);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (entry->which == which || !clock_is_before(now, entry->until))
			(void) hash_search(refused.rows, &entry->place, HASH_REMOVE, NULL);
	if (hash_get_num_entries(refused.rows) == 0)
		refused_forget();
}

/* Forget the rows of one kind: they are tried again. */
void
refused_forget_rows(RefusedBatch which)
{
	forget_rows(which, CLOCK_LONG_AGO);
}

/* Forget the rows whose time to be skipped is over. */
void
refused_tidy(MonoTime now)
{
	forget_rows(REFUSED_BATCHES, now);
}

/* How many rows may the next batch have, of at most "most"? */
int
refused_limit(RefusedBatch which, int most)
{
	int limit = refused.batches[which].limit;

	return limit > 0 ? Min(limit, most) : most;
}

/* Add rows to the batch, of which this is the first. */
void
refused_batch_add(RefusedBatch which, TaskPlace place, int rows)
{
	Batch *batch = &refused.batches[which];

	if (batch->count == 0)
		batch->first = place;
	batch->count += rows;
}

/*
 * Add to the batch those of these rows that are not refused, up to "limit", and move them to the
 * front.  Returns their number.
 */
int
refused_batch_take(RefusedBatch which, TaskPlace *places, int count, int limit, MonoTime now)
{
	int taken = 0;
	int i;

	for (i = 0; i < count && taken < limit; i++)
	{
		if (refused_has(places[i], now))
			continue;
		refused_batch_add(which, places[i], 1);
		places[taken++] = places[i];
	}
	return taken;
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

	if (batch->count > 0)
		batch->limit = batch->limit > LIMIT_MAX ? 0 : batch->limit * 2;
	batch->count = 0;
}

/* The row is refused: skip it until then. */
static void
skip_row_until(RefusedBatch which, TaskPlace place, MonoTime until)
{
	HASHCTL ctl = {.keysize = sizeof(TaskPlace), .entrysize = sizeof(RefusedRow)};
	RefusedRow *entry;

	if (refused.rows == NULL)
		refused.rows = hash_create("pg_task refused rows", 64, &ctl, HASH_ELEM | HASH_BLOBS);
	entry = hash_search(refused.rows, &place, HASH_ENTER, NULL);
	entry->which = which;
	entry->until = until;
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

		/* before anything can fail */
		batch->count = 0;
		if (count == 0 || !failure->row_at_fault)
			continue;
		at_once = true;
		if (count > 1)
			batch->limit = Max(count / 4, 1);
		else if (i != REFUSED_ORPHANS)
			skip_row_until(i, batch->first, failure->retry_at);
	}
	return at_once;
}
