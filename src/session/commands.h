/*
 * commands.h
 *		The ProcessUtility hook of all sessions.
 */
#ifndef PG_TASK_COMMANDS_H
#define PG_TASK_COMMANDS_H

#include "postgres.h"

extern void commands_define(void);

#endif /* PG_TASK_COMMANDS_H */
