/*
 * name_seed.h
 *		Hashes of names that users choose, with a seed that they do not know: else one could choose
 *		names that all have the same hash, and each search would look at all of them.
 */
#ifndef PG_TASK_NAME_SEED_H
#define PG_TASK_NAME_SEED_H

#include "postgres.h"

extern uint64 name_seed(void);
extern uint32 name_hash(const char *name);

#endif /* PG_TASK_NAME_SEED_H */
