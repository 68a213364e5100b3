/*
 * queue_rules.h
 *		Which rows of the queue table hold for a queue, and what they say together.
 */
#ifndef PG_TASK_QUEUE_RULES_H
#define PG_TASK_QUEUE_RULES_H

#include "postgres.h"

#include "datatype/timestamp.h"

#include "shared/task.h"

/* "max", "total" and "rate" of a row that says that there is none; "until" of one that says
 * nothing. */
#define RULE_UNLIMITED PG_INT32_MAX
#define RULE_NO_UNTIL (DT_NOBEGIN + 1)

/*
 * A row of the queue table, or what all rows for a queue say together.  A negative number says
 * nothing, unless stated otherwise.  What comes after the name is compared as bytes.
 */
typedef struct QueueRule
{
	const char *queue;	  /* a name, or a pattern; of the rule of a queue: NULL */
	const char *total_of; /* of the rule of a queue that has a "total": the pattern that says it */
	bool pattern;		  /* LIKE */
	int8 paused;
	int8 strict;
	int8 fair;
	int max;
	int total; /* over all queues for which the row with this pattern says it */
	int rate;
	int64 per;		   /* us; one second if the rule of a queue says nothing */
	int64 taker;	   /* whose sessions take its tasks: a role; 0: executors run them */
	TimestampTz until; /* DT_NOBEGIN if the rule of a queue says nothing */
	TaskDefaults defaults;
} QueueRule;

/* In "taker": a role that does not exist. */
#define RULE_NO_ROLE 1

/* The rules that all rows make.  The others but the last two are for queue_rules.c. */
typedef struct QueueRules
{
	MemoryContext context;
	struct rowtable_hash *rows; /* by names of queues, and by patterns */
	int prefix_max; /* the longest prefix (bytes) that is a pattern with "%"; -1: none */
	int nothers;
	const QueueRule **others;	  /* the other patterns */
	struct ruletable_hash *found; /* rules of queues: as many as say different things */
	bool divide;				  /* queues may have a limit together, or takers */
	double shortest_keep; /* the shortest time that a row keeps tasks (s); negative: none says */
} QueueRules;

/* Does the rule of a queue let no task start at this time, whatever runs? */
static inline bool
queue_rule_pauses(const QueueRule *rule, TimestampTz now)
{
	return rule->paused || rule->max == 0 || rule->total == 0 || rule->rate == 0 ||
		   rule->until > now;
}

extern QueueRules *queue_rules_build(MemoryContext context, const QueueRule *rows, int count);
extern const QueueRule **queue_rules_match(const QueueRules *rules, const char *queue, int *count);
extern const QueueRule *queue_rules_find(QueueRules *rules, const char *queue);
extern bool queue_list_matches(const char *names, int count, const char *queue);
extern bool queue_rule_same(const QueueRule *a, const QueueRule *b);
extern bool queue_rules_same(const QueueRules *a, const QueueRules *b);
extern bool queue_rules_let_take(const QueueRules *rules, bool (*may)(const QueueRule *row));

#endif /* PG_TASK_QUEUE_RULES_H */
