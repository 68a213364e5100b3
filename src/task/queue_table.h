/*
 * queue_table.h
 *		The queue table: what belongs to a queue and not to a task.
 */
#ifndef PG_TASK_QUEUE_TABLE_H
#define PG_TASK_QUEUE_TABLE_H

#include "postgres.h"

#include "utils/timestamp.h"

#include "shared/task.h"
#include "task/table.h"

/* At most this many rows are read: they take some 300 bytes of memory each, thrice while reading.
 */
#define QUEUE_ROWS_MAX 250000

/* A row of the queue table.  A negative number says nothing, unless stated otherwise. */
typedef struct QueueRule
{
	char *queue;  /* a name, or a pattern */
	bool pattern; /* LIKE */
	bool paused;
	int max;
	int rate;
	int64 per;		   /* us */
	TimestampTz until; /* DT_NOBEGIN: says nothing */
	bool strict;
	bool fair;
	TaskDefaults defaults;
} QueueRule;

/* Does the rule let no task start at this time, whatever runs? */
static inline bool
queue_rule_pauses(const QueueRule *rule, TimestampTz now)
{
	return rule->paused || rule->max == 0 || rule->rate == 0 || rule->until > now;
}

/* Is this a pattern?  It is if it has a percent sign.  Anything else is the name of a queue. */
static inline bool
queue_is_pattern(const char *queue)
{
	return strchr(queue, '%') != NULL;
}

extern bool queue_is_valid(const char *queue);
extern int queue_rules_read(const TaskTable *queues, MemoryContext where, QueueRule **rules);
extern bool queue_rule_find(Oid task, Oid owner, const char *queue, QueueRule *rule);
extern Datum queue_rules_paused(Oid task, Oid owner, Datum queues, bool *isnull);

#endif /* PG_TASK_QUEUE_TABLE_H */
