/*
 * pool.h
 *		The scheduler's side of its executors.
 */
#ifndef PG_TASK_POOL_H
#define PG_TASK_POOL_H

#include "postgres.h"

#include "scheduler/groups.h"
#include "shared/clock.h"
#include "shared/shared.h"
#include "shared/task.h"
#include "task/roles.h"
#include "task/rows.h"

typedef struct PoolExecutor PoolExecutor;

extern void pool_create(void);
extern int pool_held(Oid relid, TaskRun **runs);
extern void pool_reconcile(Oid relid, const WorkingRow *rows, int count);

extern void pool_reap(void);
extern void pool_reclaim(MonoTime now);
extern void pool_yield(void);
extern bool pool_is_busy(void);
extern void pool_dismiss(void);

extern void pool_begin_round(void);
extern PoolExecutor *pool_find(Oid role, double average, MonoTime now);
extern PoolExecutor *pool_find_isolated(Oid role);
extern int pool_pid(const PoolExecutor *executor);
extern uint32 pool_reserve(PoolExecutor *executor, QueueState *queue, bool isolated);
extern void pool_release(QueueState *queue);
extern void
pool_assign(PoolExecutor *executor, uint32 generation, QueueState *queue, const SharedTask *task);
extern void pool_end_round(void);
extern void pool_claimed(Oid role);
extern void pool_missed(Oid role);
extern bool pool_expects_locks(Oid role);

extern int pool_compare_need(Oid left, Oid right);
extern bool
pool_demand(const Role *role, const char *name, int tasks, double average, MonoTime now);
extern MonoTime pool_until(MonoTime now);

#endif /* PG_TASK_POOL_H */
