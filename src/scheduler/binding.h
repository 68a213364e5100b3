/*
 * binding.h
 *		Waiting rows that are not bound to the role that they name.
 */
#ifndef PG_TASK_BINDING_H
#define PG_TASK_BINDING_H

#include "postgres.h"

#include "shared/clock.h"
#include "task/rows.h"
#include "task/table.h"

extern void binding_add(const TaskGroup *group);
extern void binding_add_unbound(const GroupHead *heads, int count);
extern bool binding_due(void);
extern bool binding_write(const TaskTable *table, MonoTime now);
extern void binding_clear(void);

#endif /* PG_TASK_BINDING_H */
