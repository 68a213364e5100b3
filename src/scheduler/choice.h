/*
 * choice.h
 *		Which tasks start now, in which order, and on which executors.
 */
#ifndef PG_TASK_CHOICE_H
#define PG_TASK_CHOICE_H

#include "postgres.h"

#include "scheduler/dispatch.h"
#include "task/table.h"

/* Whether a dependent row was chosen. */
typedef enum ChoiceAnswer
{
	CHOICE_MADE,
	CHOICE_NO_ROOM, /* no executor has room for it */
	CHOICE_LEFT		/* it has to be judged, and to wait like others */
} ChoiceAnswer;

extern ChoiceAnswer choice_add_dependent(DispatchRound *round, const TaskTable *table,
										 const ReleasedRow *row, int *limit);
extern void choice_make(DispatchRound *round, const TaskTable *table);

#endif /* PG_TASK_CHOICE_H */
