/*
 * groups_rows.h
 *		The checks of how rows become known, for groups_check.c: hints, scans, rows that are
 *		locked.
 */
#ifndef GROUPS_ROWS_H
#define GROUPS_ROWS_H

#include "groups_table.h"

static const char *
check_hints(void)
{
	int group = add_key("q", TASK_UNLIMITED, 0, "r");
	int i;

	/* rows 1 to 10; the group is read in stretches of 3 */
	for (i = 1; i <= 10; i++)
		add_row(group, start.wall - 100 + i, i);
	groups_hint(&table.keys[group], place_of(start.wall - 99, 1), true);
	CHECK(start_next(start, NULL) == 1);
	CHECK(table.reads == 0); /* the hint named it */
	CHECK(start_next(start, NULL) == 2);
	CHECK(table.reads == 1); /* 2 to 4 */

	/* before the read position: it is next, and nothing is skipped or repeated after it */
	insert_with_hint(group, start.wall - 200, 11);
	CHECK(start_next(start, NULL) == 11);
	CHECK(start_next(start, NULL) == 3);

	/* at the read position: a task that was chosen waits again, in its old place */
	CHECK(start_next(start, NULL) == 4);
	table.rows[3].gone = false;
	groups_hint(&table.keys[group], table.rows[3].place, true);
	CHECK(start_next(start, NULL) == 4);
	table.rows[3].gone = false;
	groups_hint(&table.keys[group], table.rows[3].place, true);

	/* before the read position, but behind the next row */
	add_row(group, start.wall - 100 + 4, 12);
	groups_hint(&table.keys[group], place_of(start.wall - 100 + 4, 12), true);
	CHECK(start_next(start, NULL) == 4);
	CHECK(start_next(start, NULL) == 12);

	/* behind the read position: it is read in its turn */
	table.reads = 0;
	insert_with_hint(group, start.wall, 13);
	for (i = 5; i <= 10; i++)
		CHECK(start_next(start, NULL) == i);
	CHECK(start_next(start, NULL) == 13);
	CHECK(start_next(start, NULL) == 0);
	CHECK(table.reads <= 4);

	/* the group was read to its end: a row behind it, and one before it */
	insert_with_hint(group, start.wall, 15);
	CHECK(start_next(start, NULL) == 15);
	CHECK(start_next(start, NULL) == 0);
	insert_with_hint(group, start.wall, 14);
	CHECK(start_next(start, NULL) == 14);
	CHECK(start_next(start, NULL) == 0);
	return NULL;
}

/* Rows that are named one by one are not read, as long as there are few. */
static const char *
check_hinted_rows(void)
{
	int group = add_key("q", TASK_UNLIMITED, 0, "r");
	int i;

	insert_singly(group, start.wall - 50, 1);
	CHECK(start_next(start, NULL) == 1);
	CHECK(start_next(start, NULL) == 0);

	/* the commits were not in the order of their rows; one row is named twice */
	insert_singly(group, start.wall - 40, 3);
	insert_singly(group, start.wall - 30, 4);
	insert_singly(group, start.wall - 60, 2);
	groups_hint(&table.keys[group], place_of(start.wall - 40, 3), false);
	for (i = 2; i <= 4; i++)
		CHECK(start_next(start, NULL) == i);
	CHECK(start_next(start, NULL) == 0);
	CHECK(table.reads == 0);

	/* a row whose commit has inserted others as well */
	insert_singly(group, start.wall - 20, 5);
	add_row(group, start.wall - 10, 7);
	insert_with_hint(group, start.wall - 15, 6);
	for (i = 5; i <= 7; i++)
		CHECK(start_next(start, NULL) == i);
	CHECK(start_next(start, NULL) == 0);
	CHECK(table.reads == 1);

	/* many, in the opposite order */
	for (i = 100; i > 0; i--)
		insert_singly(group, start.wall - 100 + i, 100 + i);
	for (i = 1; i <= 100; i++)
		CHECK(start_next(start, NULL) == 100 + i);
	CHECK(start_next(start, NULL) == 0);

	/* one that was not named, behind one that was: the scan finds it */
	insert_singly(group, start.wall, 300);
	add_row(group, start.wall, 301);
	scan_groups(start);
	CHECK(start_next(start, NULL) == 300);
	CHECK(start_next(start, NULL) == 301);
	CHECK(start_next(start, NULL) == 0);
	return NULL;
}

/* A scan has found the first row of a group. */
static void
found(int group, TaskPlace place)
{
	groups_scan_found(&table.keys[group], &place, 1, false);
}

static const char *
check_scan(void)
{
	int kept = add_key("kept", TASK_UNLIMITED, 0, "r");
	int emptied = add_key("emptied", TASK_UNLIMITED, 0, "r");
	int new = add_key("new", TASK_UNLIMITED, 0, "r");
	int unknown = add_key("unknown", TASK_UNLIMITED, 0, "r");

	insert_with_hint(kept, start.wall, 1);
	insert_with_hint(emptied, start.wall, 2);
	add_row(unknown, start.wall, 4); /* no hint reports it */
	table.rows[1].gone = true;
	CHECK(groups.table->members == 2);

	groups_scan_begin();
	found(kept, place_of(start.wall, 1));
	/* meanwhile a commit reports a group that the scan has passed */
	insert_with_hint(new, start.wall, 3);
	found(unknown, place_of(start.wall, 4));
	CHECK(groups.table->members == 4);
	end_scan(start);
	CHECK(groups.table->members == 3); /* the emptied one is forgotten */

	CHECK(start_next(start, NULL) == 1);
	CHECK(start_next(start, NULL) == 3);
	CHECK(start_next(start, NULL) == 4);
	CHECK(start_next(start, NULL) == 0);

	/* a first row before the one that is known, which no hint reported */
	insert_with_hint(kept, start.wall, 6);
	add_row(kept, start.wall, 5);
	scan_groups(start);
	CHECK(start_next(start, NULL) == 5);
	CHECK(start_next(start, NULL) == 6);

	/* the first row is gone without a report, and another is the first now */
	insert_with_hint(kept, start.wall, 7);
	insert_with_hint(kept, start.wall, 8);
	table.rows[table.nrows - 2].gone = true;
	scan_groups(start);
	CHECK(start_next(start, NULL) == 8);
	CHECK(start_next(start, NULL) == 0);

	/* a group that the scan does not find is kept if a hint reports it meanwhile */
	insert_with_hint(emptied, start.wall, 9);
	CHECK(start_next(start, NULL) == 9);
	groups_scan_begin();
	insert_with_hint(emptied, start.wall, 10);
	end_scan(start);
	CHECK(groups.table->members == 1);
	CHECK(start_next(start, NULL) == 10);
	return NULL;
}

static const char *
check_drop_and_skip(void)
{
	int first = add_key("first", TASK_UNLIMITED, 0, "r");
	int second = add_key("second", TASK_UNLIMITED, 1, "r");
	QueueGroup *group;

	insert_with_hint(first, start.wall - 1, 1);
	insert_with_hint(first, start.wall + 1, 2);
	insert_with_hint(second, start.wall, 3);
	begin_round(start);

	/* a skipped group comes again in the next round */
	group = next_known(start);
	CHECK(group->key.priority == 0);
	order_skip(next_known(start));
	CHECK(next_known(start)->key.priority == 1);
	begin_round(start);
	CHECK(next_known(start) == group);

	/* a dropped row does not come again, and does not count; a row that is not due is kept */
	CHECK(group->places[group->next].id == 1);
	CHECK(groups_drop(group, start));
	table.rows[0].gone = true;
	CHECK(group->queue->running == 0);
	begin_round(start);
	CHECK(next_known(start)->key.priority == 1);
	CHECK(!group_is_due(group, start));
	CHECK(!groups_drop(group, start));
	CHECK(start_next(after(start, 1), NULL) == 2);
	return NULL;
}

/* Start the next task, unless its row is before "locked": then it is not claimed. */
static int64
try_next(ClockNow now, int64 locked)
{
	QueueGroup *group;
	QueueState *queue;
	TaskPlace place;

	begin_round(now);
	group = next_known(now);
	if (group == NULL || !choose_next(now, &place, &queue))
		return 0;
	order_task_ended(queue);
	table.rows[place.id - 1].gone = place.id >= locked;
	groups_claimed(group, place, place.id >= locked);
	return place.id;
}

/* Start all tasks that may start but those before "locked".  Returns how many rows were tried. */
static int
try_all(ClockNow now, int64 locked)
{
	int tries = 0;

	while (try_next(now, locked) != 0)
		tries++;
	return tries;
}

/* Rows that are locked are passed over, and tried again after a time that grows with them. */
static const char *
check_locked_rows(void)
{
	int key = add_key("q", TASK_UNLIMITED, 0, "r");
	ClockNow now = start;
	int i;

	for (i = 1; i <= 1000; i++)
		add_row(key, start.wall, i);
	scan_groups(now);
	CHECK(try_all(now, 501) == 1000);

	/* the first of them at each scan, all of them when the time has come */
	now = after(now, 400 * SECOND / 1000);
	scan_groups(now);
	CHECK(try_all(now, 501) == 1);
	now = after(now, 100 * SECOND / 1000);
	scan_groups(now);
	CHECK(try_all(now, 501) == 500);

	/* while a row behind them is not tried yet, the others do not come before it again */
	insert_with_hint(key, start.wall, 1001);
	scan_groups(now);
	CHECK(try_next(now, 501) == 1);
	CHECK(try_next(now, 501) == 1001);
	CHECK(try_all(now, 501) == 0);

	/* the first one is free: so the others may be */
	scan_groups(now);
	CHECK(try_all(now, 1) == 500);
	CHECK(try_all(now, 1) == 0);

	/* the first one has gone */
	for (i = 1; i <= 3; i++)
		insert_with_hint(key, start.wall, 1001 + i);
	CHECK(try_all(now, 1100) == 3);
	table.rows[1001].gone = true;
	scan_groups(now);
	CHECK(try_all(now, 1) == 2);
	return NULL;
}

/* A scan lists all rows of small groups, which are not read again. */
static const char *
check_listed_rows(void)
{
	int small = add_key("small", TASK_UNLIMITED, 0, "r");
	int large = add_key("large", TASK_UNLIMITED, 1, "r");
	int i;

	table.list_limit = 3;
	for (i = 1; i <= 3; i++)
		add_row(small, start.wall, i);
	for (i = 4; i <= 10; i++)
		add_row(large, start.wall, i);
	scan_groups(start);
	for (i = 1; i <= 3; i++)
		CHECK(start_next(start, NULL) == i);
	CHECK(table.reads == 0);
	for (i = 4; i <= 10; i++)
		CHECK(start_next(start, NULL) == i);
	CHECK(start_next(start, NULL) == 0);
	CHECK(table.reads > 0);

	/* a hint says that there are more; a scan that lists them all says that there are not */
	table.reads = 0;
	insert_with_hint(small, start.wall, 21);
	insert_with_hint(small, start.wall, 22);
	scan_groups(start);
	CHECK(start_next(start, NULL) == 21);
	CHECK(start_next(start, NULL) == 22);
	CHECK(start_next(start, NULL) == 0);
	CHECK(table.reads == 0);
	insert_with_hint(small, start.wall, 23);
	scan_groups(start);
	CHECK(start_next(start, NULL) == 23);
	CHECK(start_next(start, NULL) == 0);
	CHECK(table.reads == 0);
	return NULL;
}

#endif /* GROUPS_ROWS_H */
