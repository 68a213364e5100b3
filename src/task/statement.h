/*
 * statement.h
 *		A statement on task rows, its saved plan, and access to its result.
 *
 * All functions except statement_forget and statement_define must be called between SPI_connect
 * and SPI_finish.
 */
#ifndef PG_TASK_STATEMENT_H
#define PG_TASK_STATEMENT_H

#include "postgres.h"

#include "executor/spi.h"

#include "task/table.h"

#define STATEMENT_ARGUMENTS 16

typedef struct Statement
{
	int nargs;
	Oid types[STATEMENT_ARGUMENTS];
	const char *sql; /* %1$s: rows of the table, %2$s: its name, %3$s: inherited columns */
	SPIPlanPtr plan; /* saved; NULL until the first execution */
	char *text;		 /* "sql" with the names filled in; in TopMemoryContext */
} Statement;

extern void statement_define(void);
extern void statement_forget(Statement *statement);
extern uint64
statement_execute(Statement *statement, const TaskTable *table, Datum *values, const char *nulls);

/* The last result: "row" counts from 0, "number" of a column from 1. */
extern Datum statement_value(uint64 row, int number);
extern bool statement_is_null(uint64 row, int number);
extern char *statement_text(MemoryContext where, uint64 row, int number);

extern Datum statement_array(Datum *elements, int count, Oid type);

#endif /* PG_TASK_STATEMENT_H */
