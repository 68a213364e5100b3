/*
 * supervisor.h
 *		The process that starts and stops the schedulers of all databases.
 */
#ifndef PG_TASK_SUPERVISOR_H
#define PG_TASK_SUPERVISOR_H

extern void supervisor_register(void);

#endif /* PG_TASK_SUPERVISOR_H */
