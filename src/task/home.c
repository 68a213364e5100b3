/*
 * home.c
 *		The database in which a task table is at home, as a mark says at the end of the comment on
 *		the column "attempt": the oid of the database, the identifier of the system, and which
 *		restore of a backup that system is.
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
#include "nodes/parsenodes.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"

#include "shared/shared.h"
#include "task/home.h"
#include "task/relation.h"

/* A mark begins with one of these.  Then come the numbers, and a bracket. */
#define MARK_HOME "[pg_task home "
#define MARK_AWAY "[pg_task away " /* was found away from home: it stays so */

StaticAssertDecl(sizeof(MARK_HOME) == sizeof(MARK_AWAY), "the numbers stand at the same place");

typedef struct HomeMark
{
	bool away;
	Oid database;
	uint64 system;
	uint64 restore; /* 0: of none */
} HomeMark;

/* The comment with the mark, on a column that every task table has; NULL if there is none. */
static char *
read_comment(Oid relid)
{
	return GetComment(relid, RelationRelationId,
					  get_attnum(relid, task_columns[COLUMN_ATTEMPT].name));
}

/* The mark of this database. */
static HomeMark
mark_here(void)
{
	HomeMark mark = {false, MyDatabaseId, GetSystemIdentifier(), Shared ? Shared->restore : 0};

	return mark;
}

/* Where the mark begins in a comment; NULL if there is none. */
static const char *
find_mark(const char *comment)
{
	const char *home = strstr(comment, MARK_HOME);
	const char *away = strstr(comment, MARK_AWAY);

	return home == NULL || (away != NULL && away < home) ? away : home;
}

/* Read the mark in a comment that has one.  What cannot be read is a home that is not here. */
static HomeMark
parse_mark(const char *comment)
{
	const char *text = find_mark(comment);
	HomeMark mark = {0};
	char *end;

	mark.away = strncmp(text, MARK_AWAY, strlen(MARK_AWAY)) == 0;
	mark.database = strtoul(text + strlen(MARK_HOME), &end, 10);
	if (*end == '/')
		mark.system = strtoull(end + 1, &end, 10);
	if (*end == '/')
		mark.restore = strtoull(end + 1, &end, 10);
	return mark;
}

/* The comment with this mark instead of the one that it may have. */
static char *
mark_comment(const char *comment, HomeMark mark)
{
	const char *old = comment ? find_mark(comment) : NULL;
	int length = old ? (int) (old - comment) : comment ? (int) strlen(comment) : 0;

	return psprintf("%.*s%s%s%u/" UINT64_FORMAT "/" UINT64_FORMAT "]", length,
					comment ? comment : "", comment && !old ? " " : "",
					mark.away ? MARK_AWAY : MARK_HOME, mark.database, mark.system, mark.restore);
}

/* The schedulers learn of a mark as of another change of the table. */
static void
write_mark(Oid relid, HomeMark mark)
{
	CreateComments(relid, RelationRelationId, get_attnum(relid, task_columns[COLUMN_ATTEMPT].name),
				   mark_comment(read_comment(relid), mark));
	CacheInvalidateRelcacheByRelid(relid);
}

/* Does this command set a comment that says where a task table is at home? */
bool
home_is_set_by(const Node *statement)
{
	return IsA(statement, CommentStmt) &&
		   ((const CommentStmt *) statement)->objtype == OBJECT_COLUMN &&
		   ((const CommentStmt *) statement)->comment &&
		   find_mark(((const CommentStmt *) statement)->comment);
}

/* Where is this task table at home?  The caller holds a lock on it. */
HomeState
home_find(Oid relid)
{
	const char *comment = read_comment(relid);
	HomeMark here = mark_here();
	HomeMark mark;

	if (comment == NULL || find_mark(comment) == NULL)
		return HOME_UNMARKED;
	mark = parse_mark(comment);
	/* a server that was a standby does not know of the restore of its primary */
	if (mark.away || mark.database != here.database || mark.system != here.system ||
		(here.restore != 0 && mark.restore != here.restore))
		return HOME_AWAY;
	return HOME_HERE;
}

/*
 * From now on the table is at home in this database.  The lock is that of COMMENT: two that change
 * the mark at once would be an error.
 */
void
home_set(Oid relid)
{
	LockRelationOid(relid, ShareUpdateExclusiveLock);
	write_mark(relid, mark_here());
}

/*
 * The scheduler has come to the table: if it is not marked, it is at home here.  If it is away, it
 * stays so, wherever it is taken.  Returns what is so.
 *
 * It does not wait for a VACUUM or a CREATE INDEX CONCURRENTLY, which may take hours: the mark is
 * written when the table is prepared the next time.  If it is a restore that holds the lock, to set
 * its own mark, the table changes before there are rows of it.
 */
HomeState
home_claim(Oid relid)
{
	HomeState state = home_find(relid);
	HomeMark mark = mark_here();

	if (state != HOME_HERE && ConditionalLockRelationOid(relid, ShareUpdateExclusiveLock))
	{
		state = home_find(relid);
		if (state == HOME_AWAY)
			mark = parse_mark(read_comment(relid));
		if (state != HOME_HERE && !mark.away)
		{
			mark.away = state == HOME_AWAY;
			write_mark(relid, mark);
		}
	}
	return state == HOME_AWAY ? HOME_AWAY : HOME_HERE;
}

/*
 * pg_upgrade sets this comment in a new system, in which databases have the oids that they had:
 * return it with the mark of that system, or NULL if the table was not at home.
 */
char *
home_upgraded(const char *comment)
{
	HomeMark mark = parse_mark(comment);

	if (mark.away || mark.database != MyDatabaseId)
		return NULL;
	return mark_comment(comment, mark_here());
}
