/*
 * numbering.h
 *		Which ids the sequence of a table has given.
 */
#ifndef PG_TASK_NUMBERING_H
#define PG_TASK_NUMBERING_H

#include "postgres.h"

extern bool numbering_is_ahead(Oid relid, int64 id);
extern int64 numbering_last(Oid relid);

#endif /* PG_TASK_NUMBERING_H */
