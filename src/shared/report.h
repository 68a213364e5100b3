/*
 * report.h
 *		Causes that are logged once while they last.
 */
#ifndef PG_TASK_REPORT_H
#define PG_TASK_REPORT_H

#include "postgres.h"

#include "lib/ilist.h"

/* The causes that last.  Zeroed memory is an empty set; a process keeps it in its struct. */
typedef struct Reports
{
	slist_head causes;
	int count;
} Reports;

extern bool report_due(Reports *reports, const char *cause, int patience);
extern void report_end(Reports *reports, bool unseen);

#endif /* PG_TASK_REPORT_H */
