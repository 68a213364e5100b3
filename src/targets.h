/*
 * targets.h
 *		The list in pg_task.database.
 */
#ifndef PG_TASK_TARGETS_H
#define PG_TASK_TARGETS_H

#include "postgres.h"

#include "nodes/pg_list.h"

/* One entry. */
typedef struct Target
{
	char *database; /* NULL: all that no other entry names */
	char *role;		/* NULL: the owner of the database */
	bool excluded;	/* it is to have no task table */
} Target;

extern bool targets_parse(const char *text, List **targets);
extern const char *targets_fault(List *targets);
extern const Target *targets_find(const List *targets, const char *database);

#endif /* PG_TASK_TARGETS_H */
