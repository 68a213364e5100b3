/*
 * supervisor.h
 *		The process that gives every database its scheduler.
 */
#ifndef PG_TASK_SUPERVISOR_H
#define PG_TASK_SUPERVISOR_H

extern void supervisor_register(void);

#endif /* PG_TASK_SUPERVISOR_H */
