/*
 * queue_rules.h
 *		The scheduler's memory of the rules of queues.
 */
#ifndef PG_TASK_QUEUE_RULES_H
#define PG_TASK_QUEUE_RULES_H

#include "postgres.h"

#include "task/queue_table.h"

extern bool queue_rules_set(MemoryContext context, QueueRule *rules, int count);
extern const QueueRule *queue_rules_find(const char *queue);
extern bool queue_rules_same(const QueueRule *a, const QueueRule *b);
extern uint32 queue_rules_generation(void);
extern double queue_rules_shortest_keep(void);

#endif /* PG_TASK_QUEUE_RULES_H */
