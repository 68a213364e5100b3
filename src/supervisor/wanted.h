/*
 * wanted.h
 *		Which databases should have a scheduler?
 */
#ifndef PG_TASK_WANTED_H
#define PG_TASK_WANTED_H

#include "postgres.h"

#include "nodes/pg_list.h"

#include "shared/report.h"

/* A database that should have a scheduler. */
typedef struct Wanted
{
	Oid database;
	Oid user;
	char *name;
	TransactionId version; /* another one after any change of its row in pg_database */
} Wanted;

extern List *wanted_read(MemoryContext context, Reports *unusable);

#endif /* PG_TASK_WANTED_H */
