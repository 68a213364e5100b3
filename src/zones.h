/*
 * zones.h
 *		Time zones by name.
 */
#ifndef PG_TASK_ZONES_H
#define PG_TASK_ZONES_H

#include "postgres.h"

#include "pgtime.h"

extern pg_tz *zone_find(const char *name);
extern bool zones_fill_memory(void);

#endif /* PG_TASK_ZONES_H */
