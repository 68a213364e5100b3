/*
 * role_line.h
 *		The roles that have due tasks and no executor, in the order of their needs.
 */
#ifndef PG_TASK_ROLE_LINE_H
#define PG_TASK_ROLE_LINE_H

#include "postgres.h"

#include "scheduler/lanes.h"
#include "shared/clock.h"

extern void role_line_create(void);
extern void role_line_add(GroupRole *role, MonoTime since, RoleLine which);
extern void role_line_forget(GroupRole *role);
extern void role_line_look(GroupRole *role);
extern void role_line_recall_all(void);
extern void role_line_recall(uint32 changes, MonoTime now);
extern int role_line_call(MonoTime before, int limit, bool full);
extern void role_line_end_round(void);
extern bool role_line_waits(void);
extern int role_line_count(void);
extern bool role_line_has_barred(uint32 *changes);

#endif /* PG_TASK_ROLE_LINE_H */
