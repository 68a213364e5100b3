/*
 * group_locks.c
 *		Groups of which many rows are locked: only rows that are not are chosen then.
 *
 * This file is plain memory: no SPI, no shared memory, and it reads no clock.  locked.c finds out
 * which rows are locked.
 */
#include "postgres.h"

#include "scheduler/group_locks.h"
#include "scheduler/order.h"

/* A group counts as locked after this number of tasks in a row that could not be claimed. */
#define LOCKED_MISSES 16

/* Forget the rows behind this position. */
static void
read_again_from(QueueGroup *group, TaskPlace read_position)
{
	order_detach(group);
	group->next = group->count = 0;
	group->read_position = read_position;
	group->exhausted = false;
	order_attach(group);
}

/*
 * A scan has found the first row of a locked group.  If no row that was read is left, and the group
 * was read to its end or this row is behind the read position, the group is read again from this
 * row.  Otherwise the rest of the group is read first.
 */
void
group_locks_set_head(QueueGroup *group, TaskPlace place)
{
	TaskPlace before = {place.dt, place.id - (place.id > PG_INT64_MIN)};

	group->head = place;
	if (!group_knows_row(group) &&
		(group->exhausted || order_compare_places(&place, &group->read_position) > 0))
		read_again_from(group, before);
}

/* A task of the group was claimed: it does not count as locked. */
void
group_locks_claimed(QueueGroup *group)
{
	group->misses = 0;
	group->locked = false;
}

/*
 * A task of the group could not be claimed.  After too many in a row, only rows that are not locked
 * are chosen: a locked row needs no executor.
 */
void
group_locks_missed(QueueGroup *group)
{
	if (group->locked || ++group->misses < LOCKED_MISSES)
		return;
	group->locked = true;
	group->head.dt = DT_NOEND;
	if (group->next > 0)
		read_again_from(group, group->places[group->next - 1]);
	else if (group->count == 0)
		read_again_from(group, group->read_position);
}

/* Do not start tasks of a group before "until", and read the other groups first. */
void
group_locks_pause(QueueGroup *group, MonoTime until)
{
	order_detach(group);
	group->paused_until = until;
	order_attach(group);
}

/* The first row of a locked group is not locked any more: read the group from there. */
void
group_locks_end(QueueGroup *group)
{
	TaskPlace head = group->head;

	group_locks_claimed(group);
	groups_rewind(group, head);
}
