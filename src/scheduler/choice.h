/*
 * choice.h
 *		Which tasks start now, in which order, and on which executors.
 */
#ifndef PG_TASK_CHOICE_H
#define PG_TASK_CHOICE_H

#include "postgres.h"

#include "scheduler/groups.h"
#include "scheduler/pool.h"
#include "task/rows.h"
#include "task/table.h"

#define CHOICE_MAX 128 /* maximum number of tasks that one statement claims */

/* A task that was chosen, and may not be claimed yet. */
typedef struct Choice
{
	QueueGroup *group;
	QueueState *queue;
	PoolExecutor *executor;
	uint32 generation; /* of the executor's slot, when the executor was chosen */
	Oid role;
	bool expired; /* the claim will most likely find it expired */
} Choice;

/* Two parallel arrays, in the order of the start; valid until the next choice_make. */
extern Candidate choice_candidates[CHOICE_MAX];
extern Choice choice_list[CHOICE_MAX];
extern int choice_count;

extern void choice_none(void);
extern MonoTime choice_until(void);
extern bool choice_make(const TaskTable *table, ClockNow now, int limit, bool *wants_executor);
extern void choice_set_isolated(const int64 *ids, int count);
extern bool choice_waits_isolated(void);
extern void choice_learn(int i, bool claimed);
extern void choice_drop(void);

#endif /* PG_TASK_CHOICE_H */
