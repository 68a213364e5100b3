/*
 * group_places.h
 *		The positions of a group's next rows, as far as they were read.
 */
#ifndef PG_TASK_GROUP_PLACES_H
#define PG_TASK_GROUP_PLACES_H

#include "postgres.h"

#include "scheduler/groups.h"

extern void group_places_free(QueueGroup *group);
extern void group_places_reserve(MemoryContext context, QueueGroup *group, int more);
extern void group_places_append(QueueGroup *group, const TaskPlace *places, int count);
extern void group_places_insert(QueueGroup *group, TaskPlace place);

#endif /* PG_TASK_GROUP_PLACES_H */
