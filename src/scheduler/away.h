/*
 * away.h
 *		The tasks of a table that is away from home are held back.
 */
#ifndef PG_TASK_AWAY_H
#define PG_TASK_AWAY_H

#include "postgres.h"

#include "task/table.h"

extern void away_table_prepared(const TaskTable *table);
extern void away_look(void);

#endif /* PG_TASK_AWAY_H */
