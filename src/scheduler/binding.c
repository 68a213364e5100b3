/*
 * binding.c
 *		Waiting rows that are not bound to the role that they name.
 *
 * A task belongs to a role, not to a role name.  The scheduler does not start a row whose role was
 * renamed or dropped, or that was never bound.  It writes the new name, fails the task, or binds
 * the row, in one batch per iteration, so that many such rows do not delay the tasks of other
 * roles.
 *
 * This file starts no task.
 */
#include "postgres.h"

#include "nodes/pg_list.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "scheduler/binding.h"
#include "scheduler/dependents.h"
#include "scheduler/history.h"
#include "scheduler/refused.h"
#include "scheduler/work.h"
#include "task/roles.h"

/* Maximum number of rows and groups that are written in one iteration of the scheduler. */
#define BATCH_ROWS 256
#define BATCH_GROUPS 32

/* Maximum number of groups in "pending"; a later scan finds the others. */
#define GROUPS_MAX 512

typedef struct BindingGroup
{
	TaskGroup key;	 /* strings owned by the group */
	TaskPlace after; /* read position: rows up to here are written */
} BindingGroup;

/*
 * The groups whose rows are to be written: BindingGroup, in TopMemoryContext.  Static, because a
 * scan adds them and later iterations write their rows.
 */
static List *pending = NIL;

/* Add a group whose rows are to be written. */
void
binding_add(const TaskGroup *group)
{
	MemoryContext old;
	BindingGroup *added;
	ListCell *cell;

	foreach(cell, pending)
		if (task_same_group(&((BindingGroup *) lfirst(cell))->key, group))
			return;
	if (list_length(pending) >= GROUPS_MAX)
		return;
	old = MemoryContextSwitchTo(TopMemoryContext);
	added = palloc0(sizeof(BindingGroup));
	added->key = *group;
	added->key.queue = pstrdup(group->queue);
	added->key.role = pstrdup(group->role);
	added->after.dt = DT_NOBEGIN;
	added->after.id = PG_INT64_MIN;
	pending = lappend(pending, added);
	MemoryContextSwitchTo(old);
}

/* Add those groups of a scan whose rows are not bound, also if no row is due yet. */
void
binding_add_unbound(const GroupHead *heads, int count)
{
	const TaskGroup *last = NULL; /* most groups have the same role as the previous one */
	bool settled = true;
	int i;

	for (i = 0; i < count; i++)
	{
		const TaskGroup *group = &heads[i].group;

		if (last == NULL || last->role_id != group->role_id || strcmp(last->role, group->role) != 0)
			settled = roles_settled(group->role, group->role_id);
		last = group;
		/* unstarted.c fails the rows of a queue whose name is too long */
		if (!settled && !heads[i].too_long)
			binding_add(group);
	}
}

static void
forget_first_group(void)
{
	BindingGroup *first = linitial(pending);

	pending = list_delete_first(pending);
	pfree((char *) first->key.queue);
	pfree((char *) first->key.role);
	pfree(first);
}

/*
 * Read the ids of the next rows of a group, for one statement.  Returns their number, without the
 * refused rows; -1 if there are no more rows.
 */
static int
read_next_ids(const TaskTable *table, BindingGroup *group, int limit, MonoTime now, int64 **ids)
{
	RowsPeek peek = {.group = &group->key, .after = group->after};
	int count = 0;
	int i;

	rows_peek_groups(table, &peek, 1, limit);
	*ids = palloc((peek.count + 1) * sizeof(int64));
	for (i = 0; i < peek.count; i++)
	{
		group->after = peek.places[i];
		if (refused_has(peek.places[i], now))
			continue;
		refused_batch_add(REFUSED_BINDING, peek.places[i], 1);
		(*ids)[count++] = peek.places[i].id;
	}
	return peek.count > 0 ? count : -1;
}

/*
 * Write the next rows of the first group.  Returns their number.  Removes the group if there are no
 * more.
 */
static int
write_first_group(const TaskTable *table, int limit, MonoTime now)
{
	BindingGroup *group = linitial(pending);
	Role role = roles_find(group->key.role, group->key.role_id);
	int64 *ids;
	int count = role.settled ? -1 : read_next_ids(table, group, limit, now, &ids);
	double keep = -1;
	int i;

	if (count > 0 && role.error)
		(void) rows_fail_role_gone(table, &group->key, ids, count, role.error,
								   pstrdup(unpack_sql_state(role.sqlstate)), &keep);
	else if (count > 0)
		(void) rows_bind(table, &group->key, ids, count, role.name, role.id);
	history_hint(keep, now);
	for (i = 0; i < count && role.error; i++)
		dependents_ended(ids[i]);
	if (count < 0)
		forget_first_group();
	return Max(count, 0);
}

static MonoTime
binding_due(ClockNow now)
{
	return pending != NIL ? now.mono : CLOCK_NEVER;
}

/* Write the next rows.  A scan finds again those that are locked. */
static void
write_bindings(ClockNow now)
{
	int left = refused_limit(REFUSED_BINDING, BATCH_ROWS);
	int groups;

	work_begin_writing("binding tasks to roles");
	for (groups = 0; groups < BATCH_GROUPS && left > 0 && pending != NIL; groups++)
		left -= write_first_group(MyScheduler->table, left, now.mono);
	work_end();
	refused_batch_written(REFUSED_BINDING);
}

/* After an error that was no row's a scan finds all groups again. */
static void
binding_failed(const BatchFailure *failure)
{
	while (failure->forget && pending != NIL)
		forget_first_group();
}

const SchedulerJob binding_job = {.due = binding_due,
								  .needed = binding_due,
								  .run = write_bindings,
								  .failed = binding_failed,
								  .writes = true};
