/*
 * numbering.h
 *		Which ids the sequence of a table has given.
 */
#ifndef PG_TASK_NUMBERING_H
#define PG_TASK_NUMBERING_H

#include "postgres.h"

extern bool numbering_is_ahead(Oid relid, int64 id);
extern bool numbering_recent(Oid relid, int64 count, int64 *low, int64 *high);

#endif /* PG_TASK_NUMBERING_H */
