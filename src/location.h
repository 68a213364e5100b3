/*
 * location.h
 *		Where the task table of a database is.
 */
#ifndef PG_TASK_LOCATION_H
#define PG_TASK_LOCATION_H

#include "postgres.h"

/* Where the task table of a database is, and how often it is scanned. */
typedef struct Location
{
	char *schema; /* NULL: the user's default creation schema */
	char *table;
	bool create; /* when it is missing */
	int period;	 /* milliseconds */
} Location;

extern void location_define(void);
extern Location location_of(const char *database);

#endif /* PG_TASK_LOCATION_H */
