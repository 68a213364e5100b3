/*
 * isolation.h
 *		Isolation of suspects.
 */
#ifndef PG_TASK_ISOLATION_H
#define PG_TASK_ISOLATION_H

#include "postgres.h"

#include "shared/clock.h"

/* What is known of suspects: a scan finds them, and later iterations start them. */
typedef struct Isolation
{
	int64 *suspects; /* ids of waiting suspects, in ascending order; NULL: none */
	int count;
	bool waiting; /* one was skipped since, because another suspect runs */
	bool wanted;  /* look for them again: see isolation_want */
} Isolation;

extern void isolation_want(void);
extern bool isolation_is_wanted(void);
extern void isolation_set_suspects(const int64 *ids, int count);
extern bool isolation_needed(int64 id);
extern bool isolation_acquire(void);
extern bool isolation_keep(void);
extern void isolation_release(void);
extern bool isolation_may_begin(void);
extern MonoTime isolation_until(MonoTime now);

#endif /* PG_TASK_ISOLATION_H */
