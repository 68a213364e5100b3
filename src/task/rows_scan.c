/*
 * rows_scan.c
 *		Statements that find waiting rows.
 *
 * None of these locks or changes rows.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/memutils.h"

#include "task/rows.h"
#include "task/rows_sql.h"
#include "task/statement.h"

/* clang-format off */

/* The columns of the index on waiting rows.  The expressions must match those of the index. */
#define G_QUEUE "t.queue COLLATE \"C\""
#define G_ALL G_QUEUE ", " MAX_OR_NONE ", t.priority, t.role, t.role_id"

/*
 * Excludes rows with a NULL in one of these columns: a table that its owner created may allow
 * them, but such rows have no position.  Written with IS NOT TRUE so that the planner does not use
 * the condition with the index, where it would displace a better condition.
 */
#define COMPLETE \
	"(t.queue IS NULL OR t.priority IS NULL OR t.role IS NULL OR t.role_id IS NULL" \
	" OR t.dt IS NULL) IS NOT TRUE"

/* A loose index scan from group to group: one descent of the index for each. */
static const Statement scan_groups = {.sql =
	"WITH RECURSIVE g (queue, max, priority, role, role_id, dt, id) AS ("
	"(SELECT " G_ALL ", t.dt, t.id"
	"   FROM {rows} AS t"
	"  WHERE " WAITING " AND " COMPLETE
	"    AND (" G_ALL ") > ($queue, $max, $priority, $role::name, $role_id)"
	"  ORDER BY " G_ALL ", t.dt, t.id"
	"  LIMIT 1)"
	" UNION ALL"
	" SELECT n.*"
	"   FROM g CROSS JOIN LATERAL ("
	"        SELECT " G_ALL ", t.dt, t.id"
	"          FROM {rows} AS t"
	"         WHERE " WAITING " AND " COMPLETE
	"           AND (" G_ALL ") > (g.queue, g.max, g.priority, g.role, g.role_id)"
	"         ORDER BY " G_ALL ", t.dt, t.id"
	"         LIMIT 1) AS n"
	") SELECT substr(g.queue, 1, " CppAsString2(TASK_QUEUE_MAX) " + 1), max, priority, role::text,"
	"         dt, id, role_id, octet_length(g.queue) > " CppAsString2(TASK_QUEUE_MAX)
	"    FROM g LIMIT $limit"};

/* An index scan of all rows. */
static const Statement list_rows = {.sql =
	"SELECT substr(t.queue, 1, " CppAsString2(TASK_QUEUE_MAX) " + 1), " MAX_OR_NONE ", t.priority,"
	"       t.role::text, t.dt, t.id, t.role_id,"
	"       octet_length(t.queue) > " CppAsString2(TASK_QUEUE_MAX)
	"  FROM {rows} AS t"
	" WHERE " WAITING " AND " COMPLETE
	"   AND (" G_ALL ") > ($queue, $max, $priority, $role::name, $role_id)"
	" ORDER BY " G_ALL ", t.dt, t.id"
	" LIMIT $limit"};

/* clang-format on */

/* Add what identifies a group. */
static void
arg_group(StatementArgs *args, const TaskGroup *group)
{
	arg_text(args, "queue", group->queue);
	arg_int32(args, "max", group->max);
	arg_int32(args, "priority", group->priority);
	arg_text(args, "role", group->role);
	arg_int64(args, "role_id", group->role_id);
}

/* Execute one of the two statements above. */
static int
read_heads(const Statement *statement, const TaskTable *table, const TaskGroup *after, int limit,
		   GroupHead **heads)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	uint64 count;
	uint64 i;

	statement_begin(&args);
	arg_group(&args, after);
	arg_int64(&args, "limit", limit);
	count = statement_execute(statement, table, &args);
	*heads = MemoryContextAllocHuge(caller, Max(count, 1) * sizeof(GroupHead));
	for (i = 0; i < count; i++)
	{
		GroupHead *head = &(*heads)[i];

		head->group.queue = statement_text(caller, i, 1);
		head->group.max = statement_int32(i, 2);
		head->group.priority = statement_int32(i, 3);
		head->group.role = statement_text(caller, i, 4);
		head->place.dt = statement_time(i, 5);
		head->place.id = statement_int64(i, 6);
		head->group.role_id = statement_int64(i, 7);
		head->too_long = statement_bool(i, 8);
	}
	statement_end();
	return (int) count;
}

/*
 * Read the next groups after "after" that have waiting rows, in order, with the first row of each.
 */
int
rows_scan(const TaskTable *table, const TaskGroup *after, int limit, GroupHead **heads)
{
	return read_heads(&scan_groups, table, after, limit, heads);
}

/*
 * Read the next rows of the groups after "after", in order: all rows of each group, but the limit
 * may cut off rows of the last one.  For groups of a few rows this takes a fraction of the time.
 */
int
rows_list(const TaskTable *table, const TaskGroup *after, int limit, GroupHead **rows)
{
	return read_heads(&list_rows, table, after, limit, rows);
}

/* Read the positions that the last statement returned; allocated in the context "where". */
int
rows_returned_places(MemoryContext where, uint64 count, TaskPlace **places)
{
	uint64 i;

	*places = MemoryContextAlloc(where, Max(count, 1) * sizeof(TaskPlace));
	for (i = 0; i < count; i++)
	{
		(*places)[i].dt = statement_time(i, 1);
		(*places)[i].id = statement_int64(i, 2);
	}
	return (int) count;
}

/* clang-format off */
static const Statement read_groups = {.sql =
	"SELECT n.dt, n.id, a.number::int4"
	"  FROM ROWS FROM (unnest($queues), unnest($maxes), unnest($priorities), unnest($roles),"
	"                  unnest($role_ids), unnest($dts), unnest($ids)) WITH ORDINALITY"
	"       AS a (queue, max, priority, role, role_id, dt, id, number)"
	" CROSS JOIN LATERAL ("
	"       SELECT t.dt, t.id"
	"         FROM {rows} AS t"
	"        WHERE " WAITING
	"          AND " G_QUEUE " = a.queue AND " MAX_OR_NONE " = a.max AND t.priority = a.priority"
	"          AND t.role = a.role::name AND t.role_id = a.role_id"
	"          AND (t.dt, t.id) > (a.dt, a.id)"
	"        ORDER BY t.dt, t.id"
	"        LIMIT $limit) AS n"};
/* clang-format on */

/* Add the groups and read positions: parallel arrays, one for each column. */
static void
arg_peeks(StatementArgs *args, const RowsPeek *peeks, int count)
{
	Datum *queues = arg_array(args, "queues", TEXTOID, count);
	Datum *maxes = arg_array(args, "maxes", INT4OID, count);
	Datum *priorities = arg_array(args, "priorities", INT4OID, count);
	Datum *roles = arg_array(args, "roles", TEXTOID, count);
	Datum *role_ids = arg_array(args, "role_ids", INT8OID, count);
	Datum *dts = arg_array(args, "dts", TIMESTAMPTZOID, count);
	Datum *ids = arg_array(args, "ids", INT8OID, count);
	int i;

	for (i = 0; i < count; i++)
	{
		const TaskGroup *group = peeks[i].group;

		queues[i] = CStringGetTextDatum(group->queue);
		maxes[i] = Int32GetDatum(group->max);
		priorities[i] = Int32GetDatum(group->priority);
		roles[i] = CStringGetTextDatum(group->role);
		role_ids[i] = Int64GetDatum(group->role_id);
		dts[i] = TimestampTzGetDatum(peeks[i].after.dt);
		ids[i] = Int64GetDatum(peeks[i].after.id);
	}
}

/*
 * Read the next waiting rows of groups after a position in each, in order, due or not: up to
 * "limit" of each group.
 */
void
rows_peek_groups(const TaskTable *table, RowsPeek *peeks, int count, int limit)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	TaskPlace *places;
	uint64 nrows;
	uint64 i;

	statement_begin(&args);
	arg_peeks(&args, peeks, count);
	arg_int64(&args, "limit", limit);
	nrows = statement_execute(&read_groups, table, &args);
	(void) rows_returned_places(caller, nrows, &places);
	for (i = 0; i < (uint64) count; i++)
		peeks[i].count = 0;
	for (i = 0; i < nrows; i++)
	{
		RowsPeek *peek = &peeks[statement_int32(i, 3) - 1];

		/* the rows of each group are together, in order */
		if (peek->count++ == 0)
			peek->places = &places[i];
		Assert(peek->places + peek->count == &places[i + 1]);
	}
	statement_end();
}

/* clang-format off */

/* The columns of the index after the queue. */
#define G_REST MAX_OR_NONE ", t.priority, t.role, t.role_id"

/* A loose index scan from group to group, as scan_groups does, within each queue. */
static const Statement read_queue_heads = {.sql =
	"SELECT a.number::int4, g.max, g.priority, g.role::text, g.role_id, g.dt, g.id"
	"  FROM unnest($queues) WITH ORDINALITY AS a (queue, number)"
	" CROSS JOIN LATERAL ("
	"       WITH RECURSIVE g (max, priority, role, role_id, dt, id) AS ("
	"       (SELECT " G_REST ", t.dt, t.id"
	"          FROM {rows} AS t"
	"         WHERE " WAITING " AND " COMPLETE " AND " G_QUEUE " = a.queue"
	"         ORDER BY " G_REST ", t.dt, t.id"
	"         LIMIT 1)"
	"        UNION ALL"
	"       SELECT n.*"
	"         FROM g CROSS JOIN LATERAL ("
	"              SELECT " G_REST ", t.dt, t.id"
	"                FROM {rows} AS t"
	"               WHERE " WAITING " AND " COMPLETE " AND " G_QUEUE " = a.queue"
	"                 AND (" G_REST ") > (g.max, g.priority, g.role, g.role_id)"
	"               ORDER BY " G_REST ", t.dt, t.id"
	"               LIMIT 1) AS n"
	"       ) SELECT * FROM g LIMIT $limit) AS g"};
/* clang-format on */

/*
 * Read the groups of these queues that have waiting rows, up to "limit" of each queue, with the
 * first row of each group.
 */
int
rows_queue_heads(const TaskTable *table, const char *const *queues, int count, int limit,
				 QueueHead **heads)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	Datum *values;
	int i;

	statement_begin(&args);
	values = arg_array(&args, "queues", TEXTOID, count);
	for (i = 0; i < count; i++)
		values[i] = CStringGetTextDatum(queues[i]);
	arg_int64(&args, "limit", limit);
	count = (int) statement_execute(&read_queue_heads, table, &args);
	*heads = MemoryContextAllocZero(caller, Max(count, 1) * sizeof(QueueHead));
	for (i = 0; i < count; i++)
	{
		QueueHead *head = &(*heads)[i];

		head->number = statement_int32(i, 1) - 1;
		head->head.group.queue = queues[head->number];
		head->head.group.max = statement_int32(i, 2);
		head->head.group.priority = statement_int32(i, 3);
		head->head.group.role = statement_text(caller, i, 4);
		head->head.group.role_id = statement_int64(i, 5);
		head->head.place.dt = statement_time(i, 6);
		head->head.place.id = statement_int64(i, 7);
	}
	statement_end();
	return count;
}

/* Comparator for qsort and bsearch: ids in ascending order. */
int
rows_compare_ids(const void *a, const void *b)
{
	int64 left = *(const int64 *) a;
	int64 right = *(const int64 *) b;

	return left < right ? -1 : left > right;
}

/* clang-format off */
static const Statement read_waits = {.sql =
	"SELECT t.id, coalesce(t.stop, '-infinity'), t.failed, " DELAY ", " BACKOFF ","
	"       coalesce(t.role::text, ''), coalesce(t.role_id, 0)"
	"  FROM {rows} AS t"
	" WHERE t.id = ANY ($ids) AND t.state = $state AND t.waits IS NULL AND t.failed > 0"};
/* clang-format on */

/* Of the rows with these ids, read those that wait, and whose last run has failed. */
int
rows_waits(const TaskTable *table, const int64 *ids, int count, RowWait **waits)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	int i;

	statement_begin(&args);
	arg_ids(&args, "ids", ids, count);
	arg_text(&args, "state", "PLAN");
	count = (int) statement_execute(&read_waits, table, &args);
	*waits = MemoryContextAllocZero(caller, Max(count, 1) * sizeof(RowWait));
	for (i = 0; i < count; i++)
	{
		RowWait *wait = &(*waits)[i];

		wait->id = statement_int64(i, 1);
		wait->stop = statement_time(i, 2);
		wait->retry.failed = statement_int32(i, 3);
		wait->retry.delay = statement_int64(i, 4);
		wait->retry.backoff = statement_float8(i, 5);
		wait->retry.role = statement_text(caller, i, 6);
		wait->retry.role_id = statement_int64(i, 7);
	}
	statement_end();
	return count;
}

/* Read the ids that the last statement returned; allocated in the context "where". */
static int
returned_ids(MemoryContext where, uint64 count, int64 **ids)
{
	uint64 i;

	*ids = MemoryContextAllocHuge(where, Max(count, 1) * sizeof(int64));
	for (i = 0; i < count; i++)
		(*ids)[i] = statement_int64(i, 1);
	return (int) count;
}

/* clang-format off */
/* The first condition matches exactly one index. */
static const Statement find_isolated = {.sql =
	"SELECT t.id"
	"  FROM {rows} AS t"
	" WHERE (t.state = 'WORK' OR (t.state = 'PLAN' AND t.crashed > 0))"
	"   AND t.state = $state AND t.crashed > 0 AND t.waits IS NULL"};
/* clang-format on */

/*
 * Find the waiting tasks that are suspects: the server may have crashed because of them, and they
 * must be run isolated.
 */
int
rows_isolated(const TaskTable *table, int64 **ids)
{
	MemoryContext caller = CurrentMemoryContext;
	StatementArgs args;
	int count;

	statement_begin(&args);
	arg_text(&args, "state", "PLAN");
	count = returned_ids(caller, statement_execute(&find_isolated, table, &args), ids);
	statement_end();
	return count;
}
