/*
 * group_locks.h
 *		Groups of which many rows are locked: only rows that are not are chosen then.
 */
#ifndef PG_TASK_GROUP_LOCKS_H
#define PG_TASK_GROUP_LOCKS_H

#include "postgres.h"

#include "scheduler/groups.h"

extern void group_locks_set_head(QueueGroup *group, TaskPlace place);
extern void group_locks_claimed(QueueGroup *group);
extern void group_locks_missed(QueueGroup *group);
extern void group_locks_pause(QueueGroup *group, MonoTime until);
extern void group_locks_end(QueueGroup *group);

#endif /* PG_TASK_GROUP_LOCKS_H */
