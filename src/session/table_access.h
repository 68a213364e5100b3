/*
 * table_access.h
 *		The task table of this database, for a function that SQL calls, on behalf of its caller.
 *
 * A function executes each of its statements on the table so, connected to SPI:
 *
 *		TableAccess access = table_access_open(ACCESS_ROWS);
 *
 *		table_access_execute(&access, "SELECT ...", options, SPI_OK_SELECT);
 */
#ifndef PG_TASK_TABLE_ACCESS_H
#define PG_TASK_TABLE_ACCESS_H

#include "postgres.h"

#include "executor/spi.h"
#include "nodes/params.h"

#include "task/relation.h"

/* What a function tells. */
typedef enum AccessKind
{
	ACCESS_ROWS,   /* what is in rows that the caller may see */
	ACCESS_FIGURES /* numbers, names and times, also to members of pg_read_all_stats */
} AccessKind;

typedef struct TableAccess
{
	Oid relid;
	Oid owner; /* of the table */
	Oid caller;
	Oid user;			   /* whose rights statements have, restricted; InvalidOid: the caller's */
	bool sees_all;		   /* no row is hidden from the caller */
	bool inserts;		   /* the statement is an INSERT for the caller */
	const char *rows;	   /* what the caller sees, for FROM */
	const char *table;	   /* for UPDATE */
	const char *name;	   /* for INSERT */
	const char *condition; /* ends the WHERE of that, in which the table is t; may be "" */
	const char *readable;  /* condition on a row t of "rows": its texts are for the caller, too */
} TableAccess;

/* A statement has one parameter. */
static inline ParamListInfo
table_access_param(Oid type, Datum value)
{
	ParamListInfo params = makeParamList(1);

	params->params[0] =
		(ParamExternData){.value = value, .pflags = PARAM_FLAG_CONST, .ptype = type};
	return params;
}

extern Oid table_access_known(void);
extern Oid table_access_find(void);
extern const char *table_access_service(void);
extern bool table_access_bars_code(Oid owner);
extern TableAccess table_access_open(AccessKind kind);
extern const char *table_access_own(const TableAccess *access);
extern void
table_access_check_update(const TableAccess *access, TaskColumn which, const char *purpose);
extern bool table_access_reads(Oid relid, TaskColumn which);
extern void table_access_check_insert(const TableAccess *access, const char *purpose);
extern const TableAccess *table_access_current(void);
extern uint64 table_access_execute(const TableAccess *access, const char *sql,
								   SPIExecuteOptions options, int expected);

#endif /* PG_TASK_TABLE_ACCESS_H */
