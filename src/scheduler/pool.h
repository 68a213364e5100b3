/*
 * pool.h
 *		The scheduler's side of its executors.
 */
#ifndef PG_TASK_POOL_H
#define PG_TASK_POOL_H

#include "postgres.h"

#include "postmaster/bgworker.h"

#include "scheduler/groups.h"
#include "shared/clock.h"
#include "shared/shared.h"
#include "shared/task.h"

/* The tasks behind one that has been running for this time are reclaimed (ms). */
#define RECLAIM_AFTER_MS 10

/* Maximum expected duration of all tasks in a ring, if there is more than one (us). */
#define POOL_LOAD_MAX_US 4000

/* What the scheduler remembers of a task in an executor's ring. */
typedef struct PoolTask
{
	Oid relid; /* the task table */
	TaskRun run;
	QueueState *queue; /* NULL: not known, so it does not count as running there */
	QueueStart start;  /* of its queue, by its claim; undone if it does not begin */
} PoolTask;

/* What the scheduler remembers of an executor. */
typedef struct PoolExecutor
{
	bool used;
	SharedExecutor *slot;
	uint32 generation;
	BackgroundWorkerHandle *handle; /* NULL: started by an earlier scheduler */
	Oid role;
	bool leaving; /* it was asked to exit */

	/* positions in the ring: reaped <= taken <= assigned */
	PoolTask ring[SHARED_RING];
	uint32 reaped;	 /* tasks before this position are reaped ... */
	uint32 assigned; /* ... tasks before this one are assigned */

	/* for the current round */
	double load;	  /* expected duration of its tasks (us) */
	int reserved;	  /* tasks chosen for it and not yet assigned */
	bool isolated;	  /* its task is isolated: it gets no other; remains until the task has ended */
	bool wake;		  /* tasks were assigned: wake it when the round ends */
	bool retire_then; /* ask it to exit when the round ends */

	/* copies from the slot, made by reap_executor */
	bool ready;
	int pid;
	uint32 taken;
	MonoTime taken_at;
} PoolExecutor;

/* What happened to a run, which decides about its outcome. */
typedef enum OrphanKind
{
	ORPHAN_NOT_STARTED, /* it was not begun: its row is written as if it had not been claimed */
	ORPHAN_INTERRUPTED, /* its process has exited: it is retried */
	ORPHAN_YIELDED,		/* it was rolled back, so as not to wait for a lock: it is retried */
	ORPHAN_STOPPED,		/* a user has stopped it */
	ORPHAN_FAILED,		/* its process has exited and recorded how it has ended */
	ORPHAN_CRASHED,		/* it may have crashed the server */
	ORPHAN_LOST			/* who had taken it is gone */
} OrphanKind;

/* A row in state WORK, or one in state STOP that does not say when it has ended. */
typedef struct WorkingRow
{
	TaskRun run;
	char *queue;
	bool stopped;
	bool interrupted; /* its process was terminated in the run before this one */
	int lease;		  /* -1: it was not taken */

	/* of one that was taken */
	int pid;
	char *role;
	int64 role_id;
	int64 timeout; /* us; -1 for NULL */
} WorkingRow;

/* Whom the pool and handout.c tell, above them, what has become of tasks. */
typedef struct PoolListener
{
	void (*ended)(int64 id); /* its row says so, or will */
	void (*orphaned)(TaskRun run, OrphanKind kind, const TaskFailure *failure);
} PoolListener;

/* For all of the life of the scheduler the same. */
extern PoolListener pool_listener;

extern void pool_create(PoolListener listener);
extern PoolExecutor *pool_next(const PoolExecutor *previous);

/* Loop over all executors of this scheduler. */
#define pool_foreach(executor)                                         \
	for (PoolExecutor *executor = pool_next(NULL); (executor) != NULL; \
		 (executor) = pool_next(executor))

extern void pool_reap(void);
extern void pool_reclaim(MonoTime now, bool all);

extern void pool_begin_round(void);
extern void pool_reserve(PoolExecutor *executor, QueueState *queue, bool isolated);
extern void pool_assign(PoolExecutor *executor, uint32 generation, QueueState *queue,
						QueueStart start, const SharedTask *task);
extern void pool_end_round(void);

extern bool pool_start_executor(SharedExecutor *slot, const char *role);
extern void pool_retire(PoolExecutor *executor);

/* Start counting a task whose queue was not known. */
static inline void
pool_start_counting(PoolTask *task, const char *queue)
{
	Assert(task->queue == NULL);
	task->queue = queue_find_or_add(queue);
	queue_count(task->queue, 0, 1);
}

/* Count the tasks that an executor has, or that are being claimed for it. */
static inline int
pool_count_tasks(const PoolExecutor *executor)
{
	return (int) (executor->assigned - executor->reaped) + executor->reserved;
}

/* Has a task been running too long for others to wait behind it? */
static inline bool
pool_runs_long_task(const PoolExecutor *executor, MonoTime now)
{
	return executor->taken != executor->reaped &&
		   clock_exceeds(executor->taken_at, now, RECLAIM_AFTER_MS);
}

#endif /* PG_TASK_POOL_H */
