/*
 * history.h
 *		Removes rows in a final state that have been kept for their time.
 */
#ifndef PG_TASK_HISTORY_H
#define PG_TASK_HISTORY_H

#include "postgres.h"

#include "datatype/timestamp.h"

#include "scheduler/refused.h"
#include "shared/clock.h"

/* The walk through the table: its slices are in different iterations. */
typedef struct HistoryWalk
{
	/* what decides whether there is anything to remove */
	uint32 settings;	/* value of the change counter up to which the settings are known */
	int setting;		/* shortest time by any setting (s), or SETTINGS_KEEP_FOR_EVER */
	bool prepared;		/* the table was prepared: its statistics may be new ... */
	bool unknown;		/* ... and nothing is known of its rows */
	bool rules;			/* the rules of queues have changed */
	double column;		/* shortest known value of the column "keep" (s); -1: no row has one */
	double column_seen; /* the same, since the walk began */

	/* the walk */
	bool walking;		  /* a walk is between two of its slices */
	bool negative;		  /* it has reached the ids up to 0, which come last */
	int64 position;		  /* it has handled the rows up to this id */
	uint64 range;		  /* ids in the next slice ... */
	int limit;			  /* ... and rows in it, at most */
	TimestampTz earliest; /* when the first of the rows that it has left can be removed */
	bool refused;		  /* a row could not be removed, in this walk or the one before */
	bool refused_seen;	  /* the same, in this walk */

	/* the slice that is being written: an error may interrupt it */
	bool writing;
	MonoTime begun;
	int removing; /* number of rows that it removes */
	int64 last;	  /* the last of them */

	MonoTime next;		 /* the next slice, or the next walk */
	MonoTime not_before; /* no walk begins before this */
} HistoryWalk;

extern void history_table_prepared(bool other);
extern void history_hint(double keep, MonoTime now);
extern void history_rules_changed(void);
extern bool history_due(MonoTime now);
extern MonoTime history_until(void);
extern void history_run(ClockNow now);
extern bool history_write_failed(const BatchFailure *failure);
extern bool history_refused(void);

#endif /* PG_TASK_HISTORY_H */
