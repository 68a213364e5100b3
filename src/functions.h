/*
 * functions.h
 *		What SQL calls, and what the server calls at the end of a transaction
 *		and around utility commands.
 */
#ifndef PG_TASK_FUNCTIONS_H
#define PG_TASK_FUNCTIONS_H

extern void functions_define(void);

#endif /* PG_TASK_FUNCTIONS_H */
