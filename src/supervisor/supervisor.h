/*
 * supervisor.h
 *		The process that starts and stops the schedulers of all databases.
 */
#ifndef PG_TASK_SUPERVISOR_H
#define PG_TASK_SUPERVISOR_H

#include "postgres.h"

#include "utils/hsearch.h"

#include "shared/clock.h"
#include "shared/report.h"
#include "supervisor/sleepers.h"

/* The supervisor's process. */
typedef struct SupervisorProcess
{
	HTAB *databases;	   /* of DatabaseEntry */
	Sleepers sleepers;	   /* the same entries */
	MemoryContext context; /* reset in each iteration */
	MonoTime next;		   /* when the next iteration begins at the latest */
	Reports unusable;	   /* entries of pg_task.database that cannot be used */
	Reports missing;	   /* worker slots, places */

	/* when the catalogs are read again at the latest, and what was known when they were read */
	MonoTime read_again;
	uint32 databases_changes;
	uint32 settings_changes;
	int64 wall_ahead; /* of the monotonic clock (us) */
} SupervisorProcess;

extern SupervisorProcess MySupervisor;

extern void supervisor_register(void);
extern void supervisor_wake_at(MonoTime moment);
extern void supervisor_compute_needs(MonoTime now);

#endif /* PG_TASK_SUPERVISOR_H */
