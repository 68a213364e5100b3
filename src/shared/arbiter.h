/*
 * arbiter.h
 *		How all databases of the server share the executors, and which task runs
 *		isolated.
 */
#ifndef PG_TASK_ARBITER_H
#define PG_TASK_ARBITER_H

#include "postgres.h"

#include "shared/shared.h"

/* What becomes of a request for an executor slot. */
typedef enum ArbiterAnswer
{
	ARBITER_RESERVED,
	ARBITER_REFUSED,		/* none is free, or another database comes first */
	ARBITER_ROLE_FULL,		/* the role has as many as it may, all in this database */
	ARBITER_ROLE_ELSEWHERE, /* ... some in others, or another database is to have the next one */
} ArbiterAnswer;

extern ArbiterAnswer
arbiter_reserve(SharedScheduler *me, Oid role, int limit, SharedExecutor **slot);
extern int arbiter_slots(void);
extern bool arbiter_has_place(void);
extern int arbiter_places(void);
extern int arbiter_free_places(bool *taken);
extern void arbiter_evict(Oid database, Oid role);
extern void arbiter_want(SharedScheduler *me, bool wants, Oid role);
extern bool arbiter_yield(SharedScheduler *me, Oid *role);
extern int arbiter_count_database(Oid database);

extern bool arbiter_take_isolated(SharedScheduler *me);
extern void arbiter_release_isolated(SharedScheduler *me);

#endif /* PG_TASK_ARBITER_H */
