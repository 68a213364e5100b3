/*
 * name_hash.h
 *		Hash tables by names that users choose.
 *
 * The hashes have a seed that users do not know: else one could choose names that all have the same
 * hash, and each search would look at all of them.
 *
 * With SH_PREFIX, SH_ELEMENT_TYPE and SH_KEY defined as for simplehash, this defines a table by
 * names; or by other keys, with SH_KEY_TYPE, SH_HASH_KEY and SH_EQUAL as well.  The entry has the
 * fields SH_KEY (char *), hash (uint32) and status (char).  It may be included several times.
 */
#ifndef PG_TASK_NAME_HASH_H
#define PG_TASK_NAME_HASH_H

#include "common/hashfn.h"
#include "common/pg_prng.h"

/* Return the seed of the tables of a file.  It never changes, because they depend on it. */
static inline uint64
name_seed(void)
{
	static uint64 seed = 0; /* 0: not chosen yet */

	while (seed == 0)
		seed = pg_prng_uint64(&pg_global_prng_state);
	return seed;
}

static inline uint32
name_hash(const char *name)
{
	return (uint32) hash_bytes_extended((const unsigned char *) name, (int) strlen(name),
										name_seed());
}

/*
 * Define "name", which inserts a key into a simplehash table made with SH_PREFIX "prefix".  If
 * simplehash fails to allocate memory when it grows, it has already changed the size in its header.
 * This restores the header, so that the table stays usable, and passes the error on.
 */
#define DEFINE_HASH_INSERT(name, prefix, entry_type, key_type)  \
	static entry_type *name(prefix##_hash *table, key_type key) \
	{                                                           \
		prefix##_hash before = *table;                          \
		entry_type *volatile entry = NULL;                      \
		bool found;                                             \
                                                                \
		PG_TRY();                                               \
		{                                                       \
			entry = prefix##_insert(table, key, &found);        \
		}                                                       \
		PG_CATCH();                                             \
		{                                                       \
			*table = before;                                    \
			PG_RE_THROW();                                      \
		}                                                       \
		PG_END_TRY();                                           \
		return entry;                                           \
	}

#endif /* PG_TASK_NAME_HASH_H */

#ifdef SH_PREFIX
#ifndef SH_KEY_TYPE
#define SH_KEY_TYPE char *
#define SH_HASH_KEY(tb, key) name_hash(key)
#define SH_EQUAL(tb, a, b) (strcmp(a, b) == 0)
#endif
#define SH_STORE_HASH
#define SH_GET_HASH(tb, entry) (entry)->hash
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"
#endif
