/*
 * hold.h
 *		Databases that a command needs for itself.
 */
#ifndef PG_TASK_HOLD_H
#define PG_TASK_HOLD_H

#include "postgres.h"

extern void hold_take(Oid database);
extern bool hold_exists(Oid database);
extern void hold_wait(Oid database, int timeout);
extern void hold_release(void);

#endif /* PG_TASK_HOLD_H */
