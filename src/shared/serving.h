/*
 * serving.h
 *		Since when this server runs tasks.
 */
#ifndef PG_TASK_SERVING_H
#define PG_TASK_SERVING_H

#include "postgres.h"

#include "datatype/timestamp.h"

extern void serving_init(void);
extern void serving_keep(void);
extern void serving_begin(void);
extern TimestampTz serving_since(void);

#endif /* PG_TASK_SERVING_H */
