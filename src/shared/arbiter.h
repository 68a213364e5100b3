/*
 * arbiter.h
 *		How all databases of the server share the executors, and which task runs
 *		isolated.
 */
#ifndef PG_TASK_ARBITER_H
#define PG_TASK_ARBITER_H

#include "postgres.h"

#include "shared/shared.h"

/* May a role get one more executor, by its limit for the whole server? */
typedef enum RoleLimit
{
	ROLE_MAY_START,
	ROLE_IS_FULL, /* no, and all that it has are in this database */
	ROLE_AWAITS	  /* not before one of another database has exited, or has been started there */
} RoleLimit;

extern SharedExecutor *arbiter_reserve(SharedScheduler *me, Oid role, int limit);
extern bool arbiter_has_slots(void);
extern bool arbiter_slot_is_free(void);
extern int arbiter_places(void);
extern int arbiter_free_places(void);
extern void arbiter_evict_for_scheduler(void);
extern void arbiter_evict(Oid database, Oid role);
extern void arbiter_want(SharedScheduler *me, bool wants);
extern bool arbiter_yield(SharedScheduler *me);
extern RoleLimit arbiter_role_limit(SharedScheduler *me, Oid role, int limit, bool take);
extern void arbiter_await(SharedScheduler *me, const Oid *roles, int count);
extern int arbiter_count_database(Oid database);

extern void arbiter_renew(SharedScheduler *me);
extern bool arbiter_keep_isolated(SharedScheduler *me);
extern bool arbiter_take_isolated(SharedScheduler *me);
extern void arbiter_release_isolated(SharedScheduler *me);
extern bool arbiter_isolated_free(SharedScheduler *me);
extern void arbiter_isolated_ended(void);

#endif /* PG_TASK_ARBITER_H */
