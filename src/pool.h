/*
 * pool.h
 *		The scheduler's side of its executors.
 */
#ifndef PG_TASK_POOL_H
#define PG_TASK_POOL_H

#include "postgres.h"

#include "roles.h"
#include "shared.h"
#include "task.h"
#include "waiting.h"

/* Why a task is no longer where it was. */
typedef enum PoolLoss
{
	POOL_NOT_STARTED, /* as if it had not been claimed */
	POOL_INTERRUPTED, /* its process is gone */
	POOL_FAILED		  /* it ended with its process, which left a message */
} PoolLoss;

/* Called for every task that is lost; must not fail. */
typedef void (*PoolLossCallback)(TaskRun run, PoolLoss loss, const TaskFailure *failure);

typedef struct PoolExecutor PoolExecutor;

extern void pool_create(SharedScheduler *scheduler, const char *database, PoolLossCallback lost);
extern bool pool_runs(TaskRun run, WaitingQueue *queue);

extern void pool_reap(void);
extern void pool_take_back(TimestampTz now);
extern void pool_yield(void);
extern void pool_dismiss(void);

extern void pool_begin(void);
extern PoolExecutor *pool_find(Oid role, double average, TimestampTz now);
extern int pool_pid(const PoolExecutor *executor);
extern uint32 pool_reserve(PoolExecutor *executor, const WaitingQueue *queue);
extern void pool_assign(PoolExecutor *executor, uint32 generation, WaitingQueue *queue, Oid relid,
						const SharedTask *task);
extern void pool_wake(void);

extern int pool_compare_need(Oid left, Oid right);
extern bool
pool_demand(const Role *role, const char *name, int tasks, double average, TimestampTz now);
extern TimestampTz pool_until(TimestampTz now);

#endif /* PG_TASK_POOL_H */
