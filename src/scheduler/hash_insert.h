/*
 * hash_insert.h
 *		Insertion into a simplehash table that survives running out of memory.
 *
 * If simplehash fails to allocate memory when it grows, it has already changed the size in its
 * header.  The function defined here restores the header, so that the table stays usable, and
 * passes the error on.
 */
#ifndef PG_TASK_HASH_INSERT_H
#define PG_TASK_HASH_INSERT_H

/* Define "name", which inserts a key into a table made with SH_PREFIX "prefix". */
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

#endif /* PG_TASK_HASH_INSERT_H */
