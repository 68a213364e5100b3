/*
 * direct.h
 *		Claims rows, and sets them to DONE, without a statement.
 *
 * The caller acts as the owner of the table, which is watched and which it has locked.
 */
#ifndef PG_TASK_DIRECT_H
#define PG_TASK_DIRECT_H

#include "postgres.h"

#include "utils/timestamp.h"

#include "task/rows.h"
#include "task/table.h"

extern int
direct_claim(const TaskTable *table, const Candidate *candidates, int count, TimestampTz now,
			 TimestampTz claimed, Claim *claims, Candidate *left, int *nleft);
extern void direct_finish(const TaskTable *table, RowFinish *finishes, int count);

#endif /* PG_TASK_DIRECT_H */
