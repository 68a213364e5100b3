/*
 * places.h
 *		Distributes the places for schedulers among the databases.
 */
#ifndef PG_TASK_PLACES_H
#define PG_TASK_PLACES_H

#include "postgres.h"

#include "utils/hsearch.h"

#include "shared/clock.h"
#include "shared/report.h"
#include "supervisor/sleepers.h"

/*
 * A scheduler that was asked to exit and has not connected after this time is terminated (ms):
 * another session may have locked the database.
 */
#define LEAVE_CONNECTING_MS 5000

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

extern void places_compute_needs(MonoTime now);
extern bool places_connected(const DatabaseEntry *entry);
extern void places_share(MonoTime now);

#endif /* PG_TASK_PLACES_H */
