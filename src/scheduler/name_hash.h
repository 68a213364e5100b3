/*
 * name_hash.h
 *		A simplehash table by names.
 *
 * Before including this, define SH_PREFIX, SH_ELEMENT_TYPE and SH_KEY as for simplehash.  The entry
 * has the fields SH_KEY (char *), hash (uint32) and status (char).  May be included several times.
 */
#include "scheduler/name_seed.h"

#define SH_KEY_TYPE char *
#define SH_HASH_KEY(tb, key) name_hash(key)
#define SH_EQUAL(tb, a, b) (strcmp(a, b) == 0)
#define SH_STORE_HASH
#define SH_GET_HASH(tb, entry) (entry)->hash
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"
