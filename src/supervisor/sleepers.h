/*
 * sleepers.h
 *		The databases that the supervisor knows, and when those without a scheduler need one.
 */
#ifndef PG_TASK_SLEEPERS_H
#define PG_TASK_SLEEPERS_H

#include "postgres.h"

#include "lib/ilist.h"
#include "lib/pairingheap.h"
#include "postmaster/bgworker.h"

#include "shared/clock.h"
#include "shared/shared.h"

/* Where an entry is: in which of the lists, or in the heap. */
typedef enum EntryPlace
{
	ENTRY_NOWHERE,
	ENTRY_SERVED,	/* it has a scheduler, or one is being started */
	ENTRY_SLEEPING, /* it gets one at its time */
	ENTRY_HELD,		/* its time has come, but a command needs the database */
	ENTRY_DISABLED	/* it gets one when its settings have changed, or it is released */
} EntryPlace;

/* What the supervisor remembers of a database. */
typedef struct DatabaseEntry
{
	Oid database; /* key of the hash table */
	EntryPlace place;
	dlist_node list;		/* of ENTRY_SERVED or ENTRY_HELD */
	pairingheap_node sleep; /* of ENTRY_SLEEPING */
	MonoTime need;			/* when it is to get a scheduler: the order of the heap */
	bool shared;			/* it has an entry in shared memory */
	bool absent;			/* it had no task table before its scheduler began */
	bool look;				/* it has changed: what its last scheduler has found need not hold */
	int visit;				/* after this time somebody looks, if nothing else calls (ms) */
	int retry;				/* pause after the table could not be prepared (ms); 0: it could */
	MonoTime left;			/* when its last scheduler ended, or when it was first seen */
	MonoTime not_before;	/* earliest time of the next start */
	int throttle;			/* delay of the next start after an early end (ms) */

	/* its scheduler */
	SharedScheduler *slot; /* NULL: none was started, or it has ended */
	uint32 generation;
	BackgroundWorkerHandle *handle;
	MonoTime started;
	MonoTime asked; /* when it was asked to exit to free its place; 0: it was not */

	/* as the catalogs were read last */
	bool wanted;
	char name[NAMEDATALEN];
	Oid user;
	TransactionId version; /* of its row in pg_database */
	uint32 settings;	   /* change counter of its settings, of which its scheduler was told */
} DatabaseEntry;

/* The entries of a List, by place. */
typedef struct Sleepers
{
	pairingheap *sleeping;
	dlist_head served; /* at most max_worker_processes */
	dlist_head held;   /* at most as many as there are holds */
	int counts[ENTRY_DISABLED + 1];
	int absent;	   /* of the sleeping ones, those without a table */
	bool crowded;  /* there are not places for all: a database without work has no scheduler */
	int visit;	   /* shortest time between two visits (ms) */
	MonoTime look; /* what schedulers have found that were started before this need not hold */
} Sleepers;

extern void sleepers_create(Sleepers *sleepers);
extern void sleepers_move(Sleepers *sleepers, DatabaseEntry *entry, EntryPlace place);
extern void sleepers_sleep(Sleepers *sleepers, DatabaseEntry *entry, MonoTime now);
extern DatabaseEntry *sleepers_first(const Sleepers *sleepers);
extern void sleepers_return_held(Sleepers *sleepers, MonoTime now);
extern void
sleepers_stayed(const Sleepers *sleepers, DatabaseEntry *entry, bool worked, bool failed);
extern int sleepers_count_needing(const Sleepers *sleepers);

#endif /* PG_TASK_SLEEPERS_H */
