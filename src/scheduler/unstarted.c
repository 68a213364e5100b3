/*
 * unstarted.c
 *		Tasks that will not be started, until their rows are written: their roles may
 *		not run them, or they have expired.
 *
 * Such a row is written, and its next run planned, in a transaction of its own after the claim.  It
 * may wait for a user's lock, or a trigger may refuse it; the tasks of other users are claimed and
 * assigned before that.
 *
 * This file is plain memory of the scheduler; it opens no transaction.
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "scheduler/refused.h"
#include "scheduler/unstarted.h"
#include "task/outcome.h"

/* Maximum number of entries; a later scan finds the other tasks again. */
#define UNSTARTED_MAX 512

typedef struct Unstarted
{
	TaskPlace place;
	NameData role;
	int active; /* as in Candidate, for a task that may have expired */
	bool repeats;
	char sqlstate[6]; /* empty: the task may have expired */
	char error[160];
} Unstarted;

static Unstarted all[UNSTARTED_MAX];
static int count = 0;
static int writing = 0; /* number of entries, from the first, that are being written */

/* Add an entry.  NULL if all are used, or if the task has one already. */
static Unstarted *
add(TaskPlace place, const char *role)
{
	int i;

	for (i = 0; i < count; i++)
		if (all[i].place.id == place.id && all[i].place.dt == place.dt &&
			strcmp(NameStr(all[i].role), role) == 0)
			return NULL;
	if (count == UNSTARTED_MAX)
		return NULL;
	memset(&all[count], 0, sizeof(Unstarted));
	all[count].place = place;
	namestrcpy(&all[count].role, role);
	return &all[count++];
}

/* Add a waiting task that is to be set to FAIL.  False if there is no free entry. */
bool
unstarted_refuse(TaskPlace place, const char *role, const char *error, int sqlstate, bool repeats)
{
	Unstarted *entry = add(place, role);

	if (entry == NULL)
		return count < UNSTARTED_MAX;
	entry->repeats = repeats;
	strlcpy(entry->sqlstate, unpack_sql_state(sqlstate), sizeof(entry->sqlstate));
	strlcpy(entry->error, error, sizeof(entry->error));
	return true;
}

/* Add a waiting task that could not be claimed: if it has expired, it is to be set to GONE. */
void
unstarted_expire(const Candidate *candidate)
{
	Unstarted *entry = add(candidate->place, candidate->group->role);

	if (entry)
		entry->active = candidate->active;
}

bool
unstarted_any(void)
{
	return count > 0;
}

static void
write_expired(const TaskTable *table, TimestampTz now)
{
	Candidate *candidates = palloc0(writing * sizeof(Candidate));
	int ncandidates = 0;
	RowKey *rows;
	int nrows;
	int i;

	for (i = 0; i < writing; i++)
	{
		if (all[i].sqlstate[0] != '\0')
			continue;
		candidates[ncandidates].place = all[i].place;
		candidates[ncandidates++].active = all[i].active;
	}
	if (ncandidates == 0)
		return;
	nrows = rows_expire(table, now, candidates, ncandidates, &rows);
	for (i = 0; i < nrows; i++)
		outcome_plan_next(table, rows[i], now, OUTCOME_EXPIRED_PAUSE_MS);
}

/*
 * Write all entries, or only the first if rows are to be written one by one.  The caller is in a
 * transaction and acts as the owner of the table.  It calls unstarted_written after the commit, or
 * unstarted_failed after an error.
 */
void
unstarted_write(const TaskTable *table, TimestampTz now)
{
	int i;

	writing = refused_singly(REFUSED_UNSTARTED) ? Min(count, 1) : count;
	for (i = 0; i < writing; i++)
		refused_add(REFUSED_UNSTARTED, all[i].place);
	write_expired(table, now);
	for (i = 0; i < writing; i++)
	{
		RowKey row = {all[i].place.id, NameStr(all[i].role)};

		if (all[i].sqlstate[0] != '\0' && row_fail(table, row, all[i].error, all[i].sqlstate) &&
			all[i].repeats)
			outcome_plan_next(table, row, now, OUTCOME_REFUSED_PAUSE_MS);
	}
}

/* The entries that were written are committed: remove them. */
void
unstarted_written(void)
{
	count -= writing;
	memmove(all, all + writing, count * sizeof(Unstarted));
	writing = 0;
}

/*
 * The transaction failed, perhaps while entries were being written.  If a row is at fault, each is
 * written in a transaction of its own, and an entry that was alone in its transaction is removed.
 * Otherwise all entries are removed: after such an error nothing that was read is trusted.
 */
void
unstarted_failed(bool row_at_fault)
{
	if (!row_at_fault)
		count = 0;
	else if (writing == 1)
		unstarted_written();
	writing = 0;
}
