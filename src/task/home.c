/*
 * home.c
 *		The database in which a task table is at home: the oid of the database, and the identifier
 *		of the system, at the end of the comment on the column "attempt".
 *
 * A clone of the database carries a comment along, and so does a dump, which restores comments
 * before the rows, also on a table that exists already.  Only the owner of the table can change
 * it.  It costs a task nothing.
 *
 * This file decides nothing: a table that is away from home is held back by the scheduler.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "commands/comment.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"

#include "task/columns.h"
#include "task/home.h"

/* The mark is this, two numbers with a slash between them, and a bracket. */
#define MARK_BEGIN "[pg_task home "
#define MARK_FORMAT MARK_BEGIN "%u/" UINT64_FORMAT "]"

/* The column that every task table has, and that has the comment. */
static AttrNumber
marked_column(Oid relid)
{
	return get_attnum(relid, task_columns[COLUMN_ATTEMPT].name);
}

/* The comment with the mark; NULL if there is none. */
static char *
read_comment(Oid relid)
{
	return GetComment(relid, RelationRelationId, marked_column(relid));
}

/* The mark of this database. */
static char *
mark_here(void)
{
	return psprintf(MARK_FORMAT, MyDatabaseId, GetSystemIdentifier());
}

/* Does this comment name a home? */
bool
home_is_named(const char *comment)
{
	return comment && strstr(comment, MARK_BEGIN) != NULL;
}

/* Where is this task table at home?  The caller holds a lock on it. */
HomeState
home_find(Oid relid)
{
	const char *comment = read_comment(relid);

	if (!home_is_named(comment))
		return HOME_UNMARKED;
	return strstr(comment, mark_here()) ? HOME_HERE : HOME_AWAY;
}

/* Mark the table as at home here.  What else the comment says, stays. */
static void
write_mark(Oid relid)
{
	char *comment = read_comment(relid);
	char *mark = comment ? strstr(comment, MARK_BEGIN) : NULL;

	if (mark)
		*mark = '\0';
	comment = psprintf("%s%s%s", comment ? comment : "", comment && !mark ? " " : "", mark_here());
	CreateComments(relid, RelationRelationId, marked_column(relid), comment);
	CacheInvalidateRelcacheByRelid(relid);
}

/*
 * From now on the table is at home in this database.  The lock is that of COMMENT: two that change
 * the mark at once would be an error.
 */
void
home_set(Oid relid)
{
	LockRelationOid(relid, ShareUpdateExclusiveLock);
	write_mark(relid);
}

/*
 * A table that is not marked is at home in this database, unless a restore marks it at this moment.
 * Returns what is so then.
 */
HomeState
home_claim(Oid relid)
{
	LockRelationOid(relid, ShareUpdateExclusiveLock);
	if (home_find(relid) == HOME_AWAY)
		return HOME_AWAY;
	write_mark(relid);
	return HOME_HERE;
}
