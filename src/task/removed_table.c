/*
 * removed_table.c
 *		The table of removed tasks: the ids of those that were removed before they were DONE, while
 *		rows of the task table waited for others.
 *
 * A dependent row finds there why a task in "after" is missing.  A session writes it with the
 * DELETE (session/removal.c); the scheduler reads it, and empties it when no row waits for others.
 *
 * Whether rows may wait is in shared memory (see shared_scheduler_expect_watches).  It is said
 * under the lock of removed_lock_tag: in mode RowExclusiveLock by a session, before it looks at the
 * tasks for which its row is to wait, and until the end of its transaction; in mode ShareLock by
 * the scheduler, when it takes that back.
 *
 * Every function runs inside a transaction of the caller, as the owner of the task table.
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "task/removed_table.h"
#include "task/side_table.h"
#include "task/statement.h"

static const ColumnDefinition columns[] = {
	{"id", INT8OID, "", COLUMN_REQUIRED | COLUMN_NOT_NULL, NULL}};

/* clang-format off */

static const char *const definitions[] = {
	"CREATE TABLE %s (id pg_catalog.int8 PRIMARY KEY)",
	"COMMENT ON TABLE %s IS"
	" 'written by pg_task: tasks that were removed before they were DONE, while others waited'",
};

static const Statement find_rows = {STATEMENT_REMOVED,
	"SELECT r.id"
	"  FROM unnest($ids) AS a (id)"
	" CROSS JOIN LATERAL (SELECT r.id FROM {rows} AS r WHERE r.id = a.id LIMIT 1) AS r"};

static const Statement forget_rows = {STATEMENT_FORGET_REMOVED,
	"DELETE FROM {rows} AS r"
	" WHERE r.id = ANY (ARRAY(SELECT r.id FROM {rows} AS r ORDER BY r.id LIMIT $limit))"};

/* clang-format on */

static const SideTable removed_table = {REMOVED_SUFFIX, lengthof(columns), columns,
										lengthof(definitions), definitions};

/* Find the table, or create it: see side_table_prepare. */
TaskTable *
removed_table_prepare(const TaskTable *table, MemoryContext context, char **fault)
{
	return side_table_prepare(&removed_table, table, context, fault);
}

/* Make the tag of the lock under which sessions and the scheduler say whether rows may wait. */
void
removed_lock_tag(LOCKTAG *tag, Oid relid)
{
	/* no other lock has this tag: a table is locked as a relation, and it has no parts */
	SET_LOCKTAG_OBJECT(*tag, MyDatabaseId, RelationRelationId, relid, 1);
}

/* Find those of these ids that are in the table.  Returns their number. */
int
removed_rows_find(const TaskTable *removed, const int64 *ids, int count, int64 **found)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	int i;

	statement_begin(&args);
	arg_ids(&args, "ids", ids, count);
	count = (int) statement_execute(&find_rows, removed, &args);
	*found = MemoryContextAlloc(caller, Max(count, 1) * sizeof(int64));
	for (i = 0; i < count; i++)
		(*found)[i] = statement_int64(i, 1);
	statement_end();
	return count;
}

/* Empty the table, but delete this number of rows at most.  Returns how many there were. */
int
removed_rows_forget(const TaskTable *removed, int limit)
{
	StatementArgs args;
	int count;

	statement_begin(&args);
	arg_int32(&args, "limit", limit);
	count = (int) statement_execute(&forget_rows, removed, &args);
	statement_end();
	return count;
}
