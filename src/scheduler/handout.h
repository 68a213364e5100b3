/*
 * handout.h
 *		The scheduler's side of the sessions that take tasks.
 */
#ifndef PG_TASK_HANDOUT_H
#define PG_TASK_HANDOUT_H

#include "postgres.h"

#include "scheduler/groups.h"
#include "scheduler/job.h"
#include "scheduler/pool.h"
#include "task/rows.h"

/* A session that waits, for one task. */
typedef struct Taker
{
	int number; /* of its slot */
	uint32 generation;
	int pid;
	int lease; /* ms; 0: as long as the session lives */
} Taker;

/* Why there is none. */
typedef enum TakerAnswer
{
	TAKER_FOUND,
	TAKER_NONE,		   /* no session waits that may take tasks of the queue */
	TAKER_OTHER_QUEUE, /* those that may, want tasks of other queues */
	TAKER_OTHER_NAME   /* or with other requests */
} TakerAnswer;

extern const SchedulerJob handout_job;

extern void handout_create(void);
extern void handout_reap(void);
extern void handout_begin_round(void);
extern TakerAnswer handout_find(const QueueGroup *group, Taker *taker);
extern void handout_reserve(const Taker *taker, QueueState *queue);
extern void handout_give(const Taker *taker, QueueState *queue, QueueStart start,
						 const Claim *claim, const SharedTask *task);
extern void handout_end_round(bool complete);
extern int handout_list_runs(TaskRun *runs);
extern bool handout_has_run(TaskRun run);
extern void
handout_reconcile(const WorkingRow *rows, int count,
				  const WorkingRow *(*find)(const WorkingRow *rows, int count, TaskRun run));
extern bool handout_keep(const WorkingRow *row);

#endif /* PG_TASK_HANDOUT_H */
