/*
 * watch.h
 *		Watches the task table for changes of its definition.
 */
#ifndef PG_TASK_WATCH_H
#define PG_TASK_WATCH_H

#include "postgres.h"

#include "nodes/pg_list.h"

extern void watch_begin(Oid relid);
extern void watch_also(Oid relid);
extern bool watch_changed(void);
extern uint32 watch_changes(void);
extern bool watch_changed_here(void);
extern bool watch_covers(Oid relid);

/* For pg_task.c. */
extern void watch_relation_invalidated(Oid relid);
extern void watch_schema_invalidated(void);

#endif /* PG_TASK_WATCH_H */
