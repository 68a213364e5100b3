/*
 * yield.h
 *		An executor that was asked to exit does not wait for locks when it reads or writes a row.
 */
#ifndef PG_TASK_YIELD_H
#define PG_TASK_YIELD_H

#include "postgres.h"

extern void yield_define(void);
extern void yield_begin(void);
extern void yield_end(void);
extern bool yield_is_cause(int sqlerrcode);

#endif /* PG_TASK_YIELD_H */
