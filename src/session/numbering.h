/*
 * numbering.h
 *		Which ids the sequence of a table has given, and who may choose one.
 */
#ifndef PG_TASK_NUMBERING_H
#define PG_TASK_NUMBERING_H

#include "postgres.h"

extern void numbering_check(Oid relid, int64 id, bool moves);
extern bool numbering_recent(Oid relid, int64 count, int64 *low, int64 *high);

#endif /* PG_TASK_NUMBERING_H */
