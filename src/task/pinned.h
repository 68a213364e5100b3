/*
 * pinned.h
 *		Pins settings while code of the table's owner runs.
 */
#ifndef PG_TASK_PINNED_H
#define PG_TASK_PINNED_H

#include "postgres.h"

extern void pinned_define(bool connected);
extern void pinned_set(void);

#endif /* PG_TASK_PINNED_H */
