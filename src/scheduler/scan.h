/*
 * scan.h
 *		The scan that finds the first waiting row of every group.
 */
#ifndef PG_TASK_SCAN_H
#define PG_TASK_SCAN_H

#include "postgres.h"

#include "utils/timestamp.h"

#include "shared/clock.h"
#include "shared/task.h"
#include "task/table.h"

/* The scan: its slices are in different iterations. */
typedef struct TableScan
{
	bool wanted;		 /* a scan was requested */
	bool going;			 /* a scan is between two of its slices */
	bool tidying;		 /* it has read all groups, and forgets what it has not found */
	bool jumping;		 /* the last groups had many rows: read only the first row of each */
	TaskGroup after;	 /* position of the scan; its strings are allocated; NULL: none */
	TimestampTz oldest;	 /* the first planned time of the rows that it has found */
	int64 cost;			 /* duration of its slices so far (us) */
	uint64 displaced;	 /* groups that had been forgotten for others before */
	MonoTime next;		 /* the next periodic scan */
	MonoTime not_before; /* no requested scan before this */
} TableScan;

extern void scan_want(void);
extern void scan_no_later(MonoTime moment);
extern void scan_forget(void);
extern bool scan_due(MonoTime now);
extern bool scan_going(void);
extern bool scan_is_wanted(void);
extern void scan_slice(const TaskTable *table, int period_ms);
extern MonoTime scan_until(void);

#endif /* PG_TASK_SCAN_H */
