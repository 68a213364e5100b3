/*
 * reboot.h
 *		Plans the tasks that run when the server starts (cron "@reboot").
 */
#ifndef PG_TASK_REBOOT_H
#define PG_TASK_REBOOT_H

#include "postgres.h"

#include "scheduler/refused.h"
#include "shared/clock.h"
#include "shared/task.h"

/* How far the search has got: before this group, and in it up to this id. */
typedef struct RebootPosition
{
	TaskGroup group; /* strings in TopMemoryContext, or NULL: before all groups */
	int64 id;
} RebootPosition;

/* The search for these tasks: its slices are in different iterations. */
typedef struct RebootSearch
{
	bool going;				 /* not all rows have been searched since the server was started */
	bool again;				 /* a row could not be written: search once more */
	RebootPosition position; /* what is committed */
	RebootPosition reached;	 /* what the slice that is being written has reached */
	int limit;				 /* rows that a slice reads at most */
	bool writing;			 /* a slice is being written: an error may interrupt it */
	MonoTime next;			 /* the next slice */
} RebootSearch;

extern void reboot_table_prepared(bool other);
extern bool reboot_due(MonoTime now);
extern MonoTime reboot_until(void);
extern void reboot_run(ClockNow now);
extern bool reboot_write_failed(const BatchFailure *failure);

#endif /* PG_TASK_REBOOT_H */
