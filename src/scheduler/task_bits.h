/*
 * task_bits.h
 *		A set of tasks, as bits for their hashes: it may have tasks that were not added.
 */
#ifndef PG_TASK_TASK_BITS_H
#define PG_TASK_TASK_BITS_H

#include "postgres.h"

extern uint8 *task_bits_create(void);
extern void task_bits_clear(uint8 *bits);
extern void task_bits_add(uint8 *bits, int64 id);
extern bool task_bits_have(const uint8 *bits, int64 id);

#endif /* PG_TASK_TASK_BITS_H */
