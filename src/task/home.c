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
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"

#include "shared/shared.h"
#include "task/columns.h"
#include "task/home.h"

/* A mark begins with this and one of two words.  Then come the numbers, and a bracket. */
#define MARK_BEGIN "[pg_task "
#define MARK_HOME MARK_BEGIN "home "
#define MARK_AWAY MARK_BEGIN "away " /* was found away from home: it stays so */

/* What a mark says. */
typedef struct HomeMark
{
	bool away;
	Oid database;
	uint64 system;
	uint64 restore; /* 0: of none */
} HomeMark;

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
static HomeMark
mark_here(void)
{
	HomeMark mark = {false, MyDatabaseId, GetSystemIdentifier(), Shared ? Shared->restore : 0};

	return mark;
}

/* Read the mark in a comment.  What cannot be read is a home that is not here. */
static HomeMark
parse_mark(const char *comment)
{
	const char *text = strstr(comment, MARK_BEGIN);
	HomeMark mark = {0};
	char *end;

	mark.away = strncmp(text, MARK_HOME, strlen(MARK_HOME)) != 0;
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
	const char *old = comment ? strstr(comment, MARK_BEGIN) : NULL;
	int length = old ? (int) (old - comment) : comment ? (int) strlen(comment) : 0;

	return psprintf("%.*s%s%s%u/" UINT64_FORMAT "/" UINT64_FORMAT "]", length,
					comment ? comment : "", comment && !old ? " " : "",
					mark.away ? MARK_AWAY : MARK_HOME, mark.database, mark.system, mark.restore);
}

/* The schedulers learn of a mark as of another change of the table. */
static void
write_mark(Oid relid, HomeMark mark)
{
	CreateComments(relid, RelationRelationId, marked_column(relid),
				   mark_comment(read_comment(relid), mark));
	CacheInvalidateRelcacheByRelid(relid);
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
	HomeMark here = mark_here();
	HomeMark mark;

	if (!home_is_named(comment))
		return HOME_UNMARKED;
	mark = parse_mark(comment);
	/* a standby of a server that was restored need not know that */
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
 * The scheduler has come to the table: if it is not marked, it is at home here, unless a restore
 * marks it at this moment.  If it is away, it stays so, wherever it is taken.  Returns what is so.
 */
HomeState
home_claim(Oid relid)
{
	HomeState state = home_find(relid);
	HomeMark mark = mark_here();

	if (state == HOME_HERE)
		return state;
	if (state == HOME_AWAY && parse_mark(read_comment(relid)).away)
		return state;
	LockRelationOid(relid, ShareUpdateExclusiveLock);
	state = home_find(relid);
	if (state == HOME_AWAY)
	{
		mark = parse_mark(read_comment(relid));
		mark.away = true;
	}
	if (state != HOME_HERE)
		write_mark(relid, mark);
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
