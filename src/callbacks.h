/*
 * callbacks.h
 *		The callbacks and hooks of which pg_task has one for all of its files.
 */
#ifndef PG_TASK_CALLBACKS_H
#define PG_TASK_CALLBACKS_H

extern void callbacks_define(void);
extern void callbacks_define_shared(void);

#endif /* PG_TASK_CALLBACKS_H */
