/*
 * arbiter.h
 *		Whose turn it is to have an executor, or to run a task apart.
 */
#ifndef PG_TASK_ARBITER_H
#define PG_TASK_ARBITER_H

#include "postgres.h"

#include "shared/shared.h"

extern SharedExecutor *turns_reserve(SharedScheduler *me, Oid role);
extern bool turns_enough_slots(void);
extern int turns_places(void);
extern int turns_free_places(void);
extern void turns_evict_for_scheduler(void);
extern void turns_evict(Oid database, Oid role);
extern void turns_want(SharedScheduler *me, bool wants);
extern bool turns_yield(SharedScheduler *me);
extern int turns_of_role(Oid role);
extern int turns_of_database(Oid database);

extern void turns_renew(SharedScheduler *me);
extern bool turns_keep_apart(SharedScheduler *me);
extern bool turns_take_apart(SharedScheduler *me);
extern void turns_give_apart(SharedScheduler *me);
extern bool turns_apart_free(SharedScheduler *me);
extern void turns_apart_ended(void);

#endif /* PG_TASK_ARBITER_H */
