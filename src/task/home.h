/*
 * home.h
 *		The database in which a task table is at home.
 */
#ifndef PG_TASK_HOME_H
#define PG_TASK_HOME_H

#include "postgres.h"

#include "access/xlog.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "nodes/nodes.h"

/* Why a row is on hold that was copied into a table that is at home. */
#define HOME_COPIED "copied from another database: see pg_task_release"

typedef enum HomeState
{
	HOME_UNMARKED, /* nothing says where it is at home */
	HOME_HERE,	   /* in this database */
	HOME_AWAY /* in another database, or in this one on another server, or it is being restored */
} HomeState;

/*
 * The upper half of a "role_id" that is written in this database.  A row that was copied, dumped or
 * replicated brings it along, and tells so where it was bound.
 */
static inline uint32
home_tag(void)
{
	return (uint32) hash_bytes_uint32_extended(MyDatabaseId, GetSystemIdentifier());
}

/* Was this "role_id" written in another database? */
static inline bool
home_is_elsewhere(int64 role_id)
{
	return role_id != 0 && (uint32) ((uint64) role_id >> 32) != home_tag();
}

extern HomeState home_find(Oid relid);
extern HomeState home_claim(Oid relid, bool now);
extern bool home_release(Oid relid);
extern char *home_upgraded(const Node *command);

#endif /* PG_TASK_HOME_H */
