/*
 * order_key.h
 *		The position of a group in the order.
 */
#ifndef PG_TASK_ORDER_KEY_H
#define PG_TASK_ORDER_KEY_H

#include "postgres.h"

#include "scheduler/groups.h"
#include "shared/task.h"

/* The position of a group in the order. */
typedef struct OrderKey
{
	int32 max;		/* it counts within a queue only */
	int32 priority; /* 0 with aging: then it is in "time" */
	int64 time;		/* dt, or the last turn of the queue if that is later; see order_key_at */
	TaskPlace place;
} OrderKey;

/* Compare two positions of rows: negative if "a" comes first. */
static inline int
order_compare_places(const TaskPlace *a, const TaskPlace *b)
{
	if (a->dt != b->dt)
		return a->dt < b->dt ? -1 : 1;
	if (a->id != b->id)
		return a->id < b->id ? -1 : 1;
	return 0;
}

/* Compare two positions, whatever their "max": positive if "a" comes first. */
static inline int
order_compare_keys(const OrderKey *a, const OrderKey *b)
{
	if (a->priority != b->priority)
		return a->priority < b->priority ? 1 : -1;
	if (a->time != b->time)
		return a->time < b->time ? 1 : -1;
	return -order_compare_places(&a->place, &b->place);
}

extern void order_key_create(int64 aging);
#ifdef USE_ASSERT_CHECKING
extern bool order_places_ascend(TaskPlace read_position, const TaskPlace *places, int count);
#endif
extern OrderKey order_key(const QueueGroup *group);
extern OrderKey order_key_at(const TaskGroup *key, TimestampTz turn, TaskPlace place);
extern int order_compare_groups(const QueueGroup *a, const QueueGroup *b);
extern int order_compare_keys_in_queue(const OrderKey *a, const OrderKey *b);
extern int order_compare_in_queue(const QueueGroup *a, const QueueGroup *b);

#endif /* PG_TASK_ORDER_KEY_H */
