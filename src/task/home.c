/*
 * home.c
 *		The database in which a task table is at home, as a mark says at the end of the comment on
 *		pg_task_release(): the oid of the database, the identifier of the system, which restore of a
 *		backup that system is, and the oid of the table.  There is a mark for each table of this
 *		database that was served.
 *
 * A clone of the database carries the marks along, and so does a copy of the server.  A dump does
 * not, since the function belongs to the extension: the rows tell, each of which was bound to its
 * role in some database.  Only a superuser can change a mark.  It costs a task nothing.
 *
 * This file executes no code of anybody, and decides nothing: a table that is away from home is
 * held back by the scheduler.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/comment.h"
#include "commands/policy.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "parser/parse_func.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

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
	Oid relid;
} HomeMark;

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

/* Where the next mark begins in a text; NULL if there is none. */
static const char *
find_mark(const char *text)
{
	const char *home = strstr(text, MARK_HOME);
	const char *away = strstr(text, MARK_AWAY);

	return home == NULL || (away != NULL && away < home) ? away : home;
}

/*
 * Read the next mark in a text, and set *text behind it.  False: there is none.  What cannot be
 * read is a home that is not here.
 */
static bool
next_mark(const char **text, HomeMark *mark)
{
	const char *begin = *text ? find_mark(*text) : NULL;
	char *end;

	memset(mark, 0, sizeof(HomeMark));
	if (begin == NULL)
		return false;
	mark->away = strncmp(begin, MARK_AWAY, strlen(MARK_AWAY)) == 0;
	mark->database = strtoul(begin + strlen(MARK_HOME), &end, 10);
	if (*end == '/')
		mark->system = strtoull(end + 1, &end, 10);
	if (*end == '/')
		mark->restore = strtoull(end + 1, &end, 10);
	if (*end == '/')
		mark->relid = strtoul(end + 1, &end, 10);
	*text = end;
	return true;
}

/* The mark of a table; all 0 if it has none. */
static HomeMark
read_mark(Oid relid)
{
	const char *text = read_comment();
	HomeMark mark;

	while (next_mark(&text, &mark))
		if (mark.relid == relid)
			break;
	return mark;
}

/* Does a mark say that its table is at home here? */
static bool
is_here(HomeMark mark)
{
	HomeMark here = mark_here(mark.relid);

	/* a server that was a standby does not know of the restore of its primary */
	return mark.database == here.database && mark.system == here.system &&
		   (here.restore == 0 || mark.restore == here.restore);
}

static void
append_mark(StringInfo comment, HomeMark mark)
{
	appendStringInfo(comment, "%s%s%u/" UINT64_FORMAT "/" UINT64_FORMAT "/%u]",
					 comment->len > 0 ? " " : "", mark.away ? MARK_AWAY : MARK_HOME, mark.database,
					 mark.system, mark.restore, mark.relid);
}

/* Begin a comment with what the other one says beside its marks. */
static void
begin_comment(StringInfo comment, const char *other)
{
	const char *first = other ? find_mark(other) : NULL;

	initStringInfo(comment);
	if (other)
		appendBinaryStringInfo(comment, other, first ? (int) (first - other) : (int) strlen(other));
	while (comment->len > 0 && comment->data[comment->len - 1] == ' ')
		comment->data[--comment->len] = '\0';
}

/*
 * Write the mark of a table, in the place of the one that it may have; those of tables that are
 * gone go as well.  The schedulers learn of it as of another change of the table.
 */
static void
write_mark(HomeMark mark)
{
	const char *other = read_comment();
	StringInfoData comment;
	HomeMark kept;

	begin_comment(&comment, other);
	while (next_mark(&other, &kept))
		if (kept.relid != mark.relid && SearchSysCacheExists1(RELOID, ObjectIdGetDatum(kept.relid)))
			append_mark(&comment, kept);
	append_mark(&comment, mark);
	CreateComments(marked_function(), ProcedureRelationId, 0, comment.data);
	CommandCounterIncrement();
	CacheInvalidateRelcacheByRelid(mark.relid);
}

/*
 * Is a table of ours being restored from a dump?  That makes the policies last; they and the
 * comments on the tables are ours.  To complete the table meanwhile would be in the way.
 */
static bool
is_being_restored(Oid relid)
{
	Oid queue = side_table_find(SIDE_QUEUE, relid);

	return get_attnum(relid, task_columns[COLUMN_ROLE_ID].name) != InvalidAttrNumber &&
		   GetComment(relid, RelationRelationId, 0) != NULL &&
		   (!OidIsValid(get_relation_policy_oid(relid, "pg_task_own", true)) ||
			(relation_owner(queue) == relation_owner(relid) &&
			 GetComment(queue, RelationRelationId, 0) != NULL &&
			 !OidIsValid(get_relation_policy_oid(queue, "pg_task_queue_own", true))));
}

/* Where is this task table at home, as far as is known?  The caller holds a lock on it. */
HomeState
home_find(Oid relid)
{
	HomeMark mark = read_mark(relid);

	if (mark.relid != relid)
		return is_being_restored(relid) ? HOME_AWAY : HOME_UNMARKED;
	return mark.away || !is_here(mark) ? HOME_AWAY : HOME_HERE;
}

/* Does this row wait or run, and, with "role_id", was it bound in another database? */
static bool
is_waiting_row(HeapTuple tuple, TupleDesc desc, AttrNumber state, AttrNumber role_id)
{
	bool isnull;
	Datum value = heap_getattr(tuple, state, desc, &isnull);
	char *word = isnull ? NULL : TextDatumGetCString(value);
	bool waits = word && (strcmp(word, "PLAN") == 0 || strcmp(word, "WORK") == 0);

	if (word)
		pfree(word);
	if (!waits || role_id == InvalidAttrNumber)
		return waits;
	value = heap_getattr(tuple, role_id, desc, &isnull);
	return !isnull && home_is_elsewhere(DatumGetInt64(value));
}

/*
 * Has this table, or partition, such a row?  All rows are read, once in the life of a table, and
 * not by a query: that could run code of its owner.
 */
static bool
has_waiting_row(Oid relid, bool elsewhere)
{
	AttrNumber state = get_attnum(relid, task_columns[COLUMN_STATE].name);
	AttrNumber role_id =
		elsewhere ? get_attnum(relid, task_columns[COLUMN_ROLE_ID].name) : InvalidAttrNumber;
	bool found = false;
	Snapshot snapshot;
	SysScanDesc scan;
	HeapTuple tuple;
	Relation rel;

	/* a table that the user has made has no such column yet */
	if (get_atttype(relid, state) != TEXTOID ||
		(elsewhere && get_atttype(relid, role_id) != INT8OID))
		return false;
	rel = table_open(relid, AccessShareLock);
	/* an older one may lack the rows */
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		CHECK_FOR_INTERRUPTS();
		found = is_waiting_row(tuple, RelationGetDescr(rel), state, role_id);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, NoLock);
	return found;
}

/* The same of a table with all its partitions. */
static bool
has_waiting_rows(Oid relid, bool elsewhere)
{
	Relation rel = table_open(relid, AccessShareLock);
	bool partitioned = rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE;
	List *relids = partitioned ? relation_members(rel) : list_make1_oid(relid);
	bool found = false;
	ListCell *cell;

	foreach(cell, relids)
		if (!found && get_rel_relkind(lfirst_oid(cell)) == RELKIND_RELATION)
			found = has_waiting_row(lfirst_oid(cell), elsewhere);
	table_close(rel, NoLock);
	return found;
}

/* Two that change the marks at once would be an error. */
static void
lock_marks(void)
{
	LockDatabaseObject(ProcedureRelationId, marked_function(), 0, ShareUpdateExclusiveLock);
}

/*
 * Is the table away, as its mark says, if that is "known"?  Else it is if rows wait in it that
 * might run elsewhere, too: in a copy all that wait, in a table without a mark those that were
 * bound elsewhere.  The caller has locked the marks.
 */
static bool
is_away(Oid relid, bool *known)
{
	HomeMark mark = read_mark(relid);

	*known = mark.relid == relid && is_here(mark);
	return *known ? mark.away : has_waiting_rows(relid, mark.relid != relid);
}

/*
 * The scheduler has come to the table, or somebody who wants it to be used "now", also if it seems
 * to be being restored.  What is found of it is marked: if it was found away, it stays so.  Returns
 * what is so.
 */
HomeState
home_claim(Oid relid, bool now)
{
	HomeMark mark = mark_here(relid);
	bool known;

	if (home_find(relid) == HOME_HERE)
		return HOME_HERE;
	lock_marks();
	if (!now && read_mark(relid).relid != relid && is_being_restored(relid))
		return HOME_AWAY;
	mark.away = is_away(relid, &known);
	if (!known)
		write_mark(mark);
	return mark.away ? HOME_AWAY : HOME_HERE;
}

/* From now on the table is at home in this database.  Returns whether it was away. */
bool
home_release(Oid relid)
{
	bool known;
	bool away;

	if (home_find(relid) == HOME_HERE)
		return false;
	lock_marks();
	away = is_away(relid, &known);
	write_mark(mark_here(relid));
	return away;
}

/*
 * If pg_upgrade sets a comment with marks by this command, in a new system, in which databases and
 * tables have the oids that they had: return it with marks of that system for the tables that were
 * at home.  Otherwise NULL.
 */
char *
home_upgraded(const Node *command)
{
	const CommentStmt *set = (const CommentStmt *) command;
	const char *comment;
	StringInfoData upgraded;
	HomeMark mark;

	if (!IsA(command, CommentStmt) || set->objtype != OBJECT_FUNCTION || set->comment == NULL ||
		find_mark(set->comment) == NULL)
		return NULL;
	comment = set->comment;
	begin_comment(&upgraded, comment);
	while (next_mark(&comment, &mark))
		append_mark(&upgraded,
					mark.away || mark.database != MyDatabaseId ? mark : mark_here(mark.relid));
	return upgraded.data;
}
