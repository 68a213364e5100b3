/*
 * restore.h
 *		Which restore of a backup this server is.
 */
#ifndef PG_TASK_RESTORE_H
#define PG_TASK_RESTORE_H

#include "postgres.h"

extern bool restore_is_recovery(void);
extern uint64 restore_number(void);

#endif /* PG_TASK_RESTORE_H */
