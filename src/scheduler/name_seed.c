/*
 * name_seed.c
 *		Hashes of names that users choose, with a seed that they do not know.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "common/pg_prng.h"

#include "scheduler/name_seed.h"

/* Return the seed of this process.  It never changes, because tables depend on it. */
uint64
name_seed(void)
{
	static uint64 seed = 0; /* 0: not chosen yet */

	while (seed == 0)
		seed = pg_prng_uint64(&pg_global_prng_state);
	return seed;
}

uint32
name_hash(const char *name)
{
	return (uint32) hash_bytes_extended((const unsigned char *) name, (int) strlen(name),
										name_seed());
}
