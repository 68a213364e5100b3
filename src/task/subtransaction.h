/*
 * subtransaction.h
 *		A function call in a subtransaction.
 */
#ifndef PG_TASK_SUBTRANSACTION_H
#define PG_TASK_SUBTRANSACTION_H

#include "postgres.h"

extern ErrorData *subtransaction_try(void (*call)(void *arg), void *arg, bool keep);

#endif /* PG_TASK_SUBTRANSACTION_H */
