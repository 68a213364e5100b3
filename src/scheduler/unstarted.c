/*
 * unstarted.c
 *		Tasks that will not be started, until their rows say so: their roles may not
 *		run them, or it is too late.
 *
 * Such a row is written, and its next run planned, in a transaction of its own after the
 * claim: whatever a user's row makes it wait for, or a trigger refuses, the tasks of
 * others are claimed and handed out before.
 *
 * This file is plain memory of the scheduler's; it opens no transaction.
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "scheduler/refused.h"
#include "scheduler/unstarted.h"
#include "task/outcome.h"

/* What does not fit is found again by a scan. */
#define UNSTARTED_MAX 512

typedef struct Unstarted
{
	TaskPlace place;
	NameData role;
	int active; /* as in Candidate, of one that may have expired */
	bool repeats;
	char sqlstate[6]; /* empty: it may have expired */
	char error[160];
} Unstarted;

static Unstarted all[UNSTARTED_MAX];
static int count = 0;
static int writing = 0; /* the first of them are being written */

/* A new entry; NULL when there is no room, or when the task has one. */
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

/* A waiting task is to be FAIL.  False: there is no room for it now. */
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

/* A waiting task was not claimed: if it has expired, it is to be GONE. */
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
 * In a transaction, as the owner of the table: write them all, or the first one alone.  Then
 * unstarted_written has to be called after the commit, or unstarted_failed after an error.
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

/* What was written is committed. */
void
unstarted_written(void)
{
	count -= writing;
	memmove(all, all + writing, count * sizeof(Unstarted));
	writing = 0;
}

/*
 * An error came, perhaps instead of that.  If a row was at fault, each is tried alone and
 * that one is let go of; otherwise nothing is known of rows any more.
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
