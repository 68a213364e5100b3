/*
 * batch.h
 *		Tasks that run one after the other in one transaction.
 */
#ifndef PG_TASK_BATCH_H
#define PG_TASK_BATCH_H

#include "postgres.h"

extern bool batch_run(bool *clean);

#endif /* PG_TASK_BATCH_H */
