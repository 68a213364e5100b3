/*
 * compiled.h
 *		Separates functions compiled for tasks from functions compiled for the table's owner.
 */
#ifndef PG_TASK_COMPILED_H
#define PG_TASK_COMPILED_H

#include "postgres.h"

extern void compiled_define(void);
extern void compiled_begin(void);
extern void compiled_end(void);
extern void compiled_abandon(void);
extern void compiled_invalidated(void); /* for callbacks.c */

#endif /* PG_TASK_COMPILED_H */
