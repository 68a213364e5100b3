/*
 * places.h
 *		Distributes the places for schedulers among the databases.
 */
#ifndef PG_TASK_PLACES_H
#define PG_TASK_PLACES_H

#include "postgres.h"

#include "supervisor/sleepers.h"

/*
 * A scheduler that was asked to exit and has not connected after this time is terminated (ms):
 * another session may have locked the database.
 */
#define LEAVE_CONNECTING_MS 5000

extern bool places_connected(const DatabaseEntry *entry);
extern void places_share(MonoTime now);

#endif /* PG_TASK_PLACES_H */
