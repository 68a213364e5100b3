/*
 * home.c
 *		The database in which a task table is at home, as a mark says at the end of the comment on
 *		pg_task_release(): the oid of the database, the identifier of the system, which restore of a
 *		backup that system is, and the oid of the table.
 *
 * A clone of the database carries the mark along, and so does a copy of the server.  A dump does
 * not, since the function belongs to the extension: the rows tell, each of which was bound to its
 * role in some database.  Only a superuser can change the mark.  It costs a task nothing.
 *
 * This file decides nothing: a table that is away from home is held back by the scheduler.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "catalog/pg_proc.h"
#include "commands/comment.h"
#include "commands/policy.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
#include "parser/parse_func.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

#include "shared/shared.h"
#include "task/home.h"
#include "task/owner.h"
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
	Oid relid;
} HomeMark;

/*
 * The upper half of a "role_id" that is written in this database.  A row that was copied, dumped or
 * replicated brings it along, and tells so where it was bound.
 */
uint32
home_tag(void)
{
	return (uint32) hash_bytes_uint32_extended(MyDatabaseId, GetSystemIdentifier());
}

/* Was this "role_id" written in another database? */
bool
home_is_elsewhere(int64 role_id)
{
	return role_id != 0 && (uint32) ((uint64) role_id >> 32) != home_tag();
}

/* The function that has the mark in its comment; InvalidOid: there is no extension. */
static Oid
marked_function(void)
{
	List *name = list_make2(makeString("pg_catalog"), makeString("pg_task_release"));

	return LookupFuncName(name, 0, NULL, true);
}

/* Its comment; NULL if there is none. */
static char *
read_comment(void)
{
	Oid function = marked_function();

	return OidIsValid(function) ? GetComment(function, ProcedureRelationId, 0) : NULL;
}

/* The mark of a table that is at home in this database. */
static HomeMark
mark_here(Oid relid)
{
	HomeMark mark = {false, MyDatabaseId, GetSystemIdentifier(), Shared ? Shared->restore : 0,
					 relid};

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
	if (*end == '/')
		mark.relid = strtoul(end + 1, &end, 10);
	return mark;
}

/* The mark there is; all 0 if there is none. */
static HomeMark
read_mark(void)
{
	const char *comment = read_comment();
	HomeMark none = {0};

	return comment && find_mark(comment) ? parse_mark(comment) : none;
}

/* The comment with this mark instead of the one that it may have. */
static char *
mark_comment(const char *comment, HomeMark mark)
{
	const char *old = comment ? find_mark(comment) : NULL;
	int length = old ? (int) (old - comment) : comment ? (int) strlen(comment) : 0;

	return psprintf("%.*s%s%s%u/" UINT64_FORMAT "/" UINT64_FORMAT "/%u]", length,
					comment ? comment : "", comment && !old ? " " : "",
					mark.away ? MARK_AWAY : MARK_HOME, mark.database, mark.system, mark.restore,
					mark.relid);
}

/* The schedulers learn of a mark as of another change of the table. */
static void
write_mark(HomeMark mark)
{
	CreateComments(marked_function(), ProcedureRelationId, 0, mark_comment(read_comment(), mark));
	CommandCounterIncrement();
	CacheInvalidateRelcacheByRelid(mark.relid);
}

/* Does this command set a comment that says where a task table is at home? */
bool
home_is_set_by(const Node *statement)
{
	return IsA(statement, CommentStmt) &&
		   ((const CommentStmt *) statement)->objtype == OBJECT_FUNCTION &&
		   ((const CommentStmt *) statement)->comment &&
		   find_mark(((const CommentStmt *) statement)->comment);
}

/*
 * Is a table of ours being restored from a dump?  That makes the policies last; they and the
 * comment on the table are ours.  To complete the table meanwhile would be in the way.
 */
static bool
is_being_restored(Oid relid)
{
	Oid queue = side_table_find(SIDE_QUEUE, relid);

	return get_attnum(relid, task_columns[COLUMN_ROLE_ID].name) != InvalidAttrNumber &&
		   GetComment(relid, RelationRelationId, 0) != NULL &&
		   (!OidIsValid(get_relation_policy_oid(relid, "pg_task_own", true)) ||
			(relation_owner(queue) == relation_owner(relid) &&
			 !OidIsValid(get_relation_policy_oid(queue, "pg_task_queue_own", true))));
}

/* Where is this task table at home, as far as the mark says?  The caller holds a lock on it. */
HomeState
home_find(Oid relid)
{
	HomeMark here = mark_here(relid);
	HomeMark mark = read_mark();

	if (mark.relid != relid)
		return is_being_restored(relid) ? HOME_AWAY : HOME_UNMARKED;
	/* a server that was a standby does not know of the restore of its primary */
	if (mark.away || mark.database != here.database || mark.system != here.system ||
		(here.restore != 0 && mark.restore != here.restore))
		return HOME_AWAY;
	return HOME_HERE;
}

/* From now on the table is at home in this database. */
void
home_set(Oid relid)
{
	/* two that change the comment at once would be an error */
	LockDatabaseObject(ProcedureRelationId, marked_function(), 0, ShareUpdateExclusiveLock);
	write_mark(mark_here(relid));
}

/* Has the table rows that may run, or only: that were bound in another database? */
static bool
has_waiting_rows(Oid relid, bool elsewhere)
{
	const char *table = quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
												   get_rel_name(relid));
	char *bound = psprintf(" AND t.role_id <> 0 AND t.role_id >> 32 <> %d", (int32) home_tag());
	char *sql = psprintf("SELECT FROM %s%s AS t WHERE t.state IN ('PLAN', 'WORK')%s",
						 get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE ? "" : "ONLY ", table,
						 elsewhere ? bound : "");
	OwnerScope scope;
	int code;

	if (elsewhere && get_attnum(relid, task_columns[COLUMN_ROLE_ID].name) == InvalidAttrNumber)
		return false;
	/* nothing of the owner's is executed as anybody else; an older snapshot may lack the rows */
	owner_restrict(relation_owner(relid), &scope);
	PushActiveSnapshot(GetLatestSnapshot());
	code = SPI_execute(sql, true, 1);
	PopActiveSnapshot();
	owner_restrict_end(&scope);
	if (code != SPI_OK_SELECT)
		elog(ERROR, "could not look for waiting tasks: %s", SPI_result_code_string(code));
	return SPI_processed > 0;
}

/*
 * The scheduler, or a function, has come to the table: it is at home here, unless rows wait in
 * it that come from elsewhere, which might have run there.  If it is away, it stays so, wherever it
 * is taken.  Connected to SPI.  Returns what is so.
 */
HomeState
home_claim(Oid relid)
{
	HomeState state = home_find(relid);
	HomeMark mark = mark_here(relid);

	if (state == HOME_HERE || (state == HOME_AWAY && is_being_restored(relid)))
		return state;
	LockDatabaseObject(ProcedureRelationId, marked_function(), 0, ShareUpdateExclusiveLock);
	state = home_find(relid);
	if (state == HOME_HERE || (state == HOME_AWAY && read_mark().away))
		return state;
	mark.away = has_waiting_rows(relid, state == HOME_UNMARKED);
	write_mark(mark);
	return mark.away ? HOME_AWAY : HOME_HERE;
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
	return mark_comment(comment, mark_here(mark.relid));
}
