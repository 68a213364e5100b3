/*
 * supervisor.h
 *		The process that starts and stops the schedulers of all databases: what its files share.
 */
#ifndef PG_TASK_SUPERVISOR_H
#define PG_TASK_SUPERVISOR_H

#include "postgres.h"

#include "nodes/pg_list.h"
#include "postmaster/bgworker.h"

#include "shared/clock.h"
#include "shared/report.h"
#include "shared/shared.h"

/*
 * A scheduler that was asked to exit and has not connected after this time is terminated (ms):
 * another session may have locked the database.
 */
#define LEAVE_CONNECTING_MS 5000

/* What the catalogs say of a database that should have a scheduler. */
typedef struct Wanted
{
	Oid database;
	Oid user;
	char name[NAMEDATALEN];
	TransactionId version; /* another one after any change of its row in pg_database */
} Wanted;

/* What the supervisor remembers of a database. */
typedef struct DatabaseEntry
{
	Wanted wanted; /* as the catalogs were read last */
	bool is_wanted;
	uint32 settings;		/* change counter of its settings, of which its scheduler was told */
	SharedDatabase *shared; /* or "unknown": see there */

	/* its scheduler */
	SharedScheduler *slot; /* NULL: none was started, or it has ended */
	uint32 generation;
	BackgroundWorkerHandle *handle;
	bool absent; /* the database had no task table before it began */
	MonoTime started;
	MonoTime asked; /* when it was asked to exit to free its place; 0: it was not */

	/* the next one */
	MonoTime need;		 /* when it is to start; computed in each iteration */
	MonoTime left;		 /* when the last one ended, or the database was first seen */
	MonoTime not_before; /* earliest time of the next start */
	int throttle;		 /* delay of the next start after an early end (ms) */
	int visit;			 /* after this time somebody looks, if nothing else calls (ms) */
	int retry;			 /* pause after the table could not be prepared (ms); 0: it could */
	bool look;			 /* it has changed: what its last scheduler has found need not hold */
} DatabaseEntry;

/* The supervisor's process. */
typedef struct SupervisorProcess
{
	List *databases;		/* of DatabaseEntry, in TopMemoryContext */
	SharedDatabase unknown; /* for more than SHARED_DATABASES: these are only visited */
	MemoryContext context;	/* reset in each iteration */
	MonoTime next;			/* when the next iteration begins at the latest */
	int visit;				/* shortest time between two visits (ms) */
	MonoTime look;			/* what schedulers have found that were started earlier need not hold */
	Reports unusable;		/* entries of pg_task.database that cannot be used */
	Reports missing;		/* worker slots, places */

	/* when the catalogs are read again at the latest, and what was known when they were read */
	MonoTime read_again;
	uint32 databases_changes;
	uint32 settings_changes;
	int64 wall_ahead; /* of the monotonic clock (us) */
} SupervisorProcess;

extern SupervisorProcess MySupervisor;

extern void supervisor_register(void);

/* places.c */
extern bool places_connected(const DatabaseEntry *entry);
extern void places_share(MonoTime now);

/* wanted.c */
extern List *wanted_read(MemoryContext context, Reports *unusable);

#endif /* PG_TASK_SUPERVISOR_H */
