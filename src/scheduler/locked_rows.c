/*
 * locked_rows.c
 *		The due rows that other sessions have locked, as far as the scheduler has found them.
 *
 * A row is here from the try that finds it locked until a try finds it free.  Each scan brings the
 * tries of all that wait, so a row that no try has found locked since the last but one began, is
 * locked no more, or does not wait.
 *
 * This file is plain memory of the scheduler, and decides nothing: the rows are only counted.
 */
#include "postgres.h"

#include "utils/hsearch.h"

#include "scheduler/locked_rows.h"

/* Rows that are remembered; of more, the others are not counted. */
#define ROWS_MAX 100000

typedef struct LockedRow
{
	/* key of the hash table: in a partitioned table the id alone may not be unique */
	TaskPlace place;
	uint32 scan; /* it was found locked since this scan has begun */
} LockedRow;

/* Static, because the rows are remembered from iteration to iteration. */
static HTAB *rows = NULL; /* NULL: none */
static uint32 scan = 0;

/* A try has found this row locked. */
void
locked_rows_add(TaskPlace place)
{
	HASHCTL ctl = {.keysize = sizeof(TaskPlace), .entrysize = sizeof(LockedRow)};
	LockedRow *row;
	bool found;

	if (rows == NULL)
		rows = hash_create("pg_task locked rows", 64, &ctl, HASH_ELEM | HASH_BLOBS);
	if (hash_get_num_entries(rows) >= ROWS_MAX)
		row = hash_search(rows, &place, HASH_FIND, NULL);
	else
		row = hash_search(rows, &place, HASH_ENTER, &found);
	if (row)
		row->scan = scan;
}

/* A try has found this row free, or claimed it. */
void
locked_rows_remove(TaskPlace place)
{
	if (rows)
		(void) hash_search(rows, &place, HASH_REMOVE, NULL);
}

/* A scan begins: forget the rows that were not found locked since the last one began. */
void
locked_rows_scan_begins(void)
{
	HASH_SEQ_STATUS status;
	LockedRow *row;

	if (rows == NULL)
		return;
	hash_seq_init(&status, rows);
	while ((row = hash_seq_search(&status)) != NULL)
		if (row->scan != scan)
			(void) hash_search(rows, &row->place, HASH_REMOVE, NULL);
	scan++;
	if (hash_get_num_entries(rows) == 0)
		locked_rows_forget();
}

/* Nothing is known of the rows any more. */
void
locked_rows_forget(void)
{
	HTAB *forgotten = rows;

	rows = NULL;
	if (forgotten)
		hash_destroy(forgotten);
}

int
locked_rows_count(void)
{
	return rows ? (int) hash_get_num_entries(rows) : 0;
}
