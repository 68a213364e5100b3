/*
 * choice.h
 *		Which tasks start now, in which order, and on which executors.
 */
#ifndef PG_TASK_CHOICE_H
#define PG_TASK_CHOICE_H

#include "postgres.h"

#include "scheduler/round.h"
#include "task/table.h"

extern void choice_make(DispatchRound *round, const TaskTable *table);

#endif /* PG_TASK_CHOICE_H */
