/*
 * queue_table.h
 *		The queue table: what belongs to a queue and not to a task.
 */
#ifndef PG_TASK_QUEUE_TABLE_H
#define PG_TASK_QUEUE_TABLE_H

#include "postgres.h"

#include "task/queue_rules.h"
#include "task/table.h"

/* At most this many rows are read: they take some 300 bytes of memory each, thrice while reading.
 */
#define QUEUE_ROWS_MAX 250000

/* Is this a pattern?  It is if it has a percent sign.  Anything else is the name of a queue. */
static inline bool
queue_is_pattern(const char *queue)
{
	return strchr(queue, '%') != NULL;
}

extern bool queue_is_valid(const char *queue);
extern int queue_rules_read(const TaskTable *queues, MemoryContext where, QueueRule **rows);
extern QueueRules *queue_rules_load(Oid task, Oid owner);
extern uint64 queue_rules_explain(Oid task, Oid owner, const char *queue);

#endif /* PG_TASK_QUEUE_TABLE_H */
