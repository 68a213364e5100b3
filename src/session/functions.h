/*
 * functions.h
 *		The functions that SQL calls and that are not triggers.
 */
#ifndef PG_TASK_FUNCTIONS_H
#define PG_TASK_FUNCTIONS_H

#include "postgres.h"

extern void functions_define(void);

#endif /* PG_TASK_FUNCTIONS_H */
