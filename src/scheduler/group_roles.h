/*
 * group_roles.h
 *		The roles that have waiting rows.
 */
#ifndef PG_TASK_GROUP_ROLES_H
#define PG_TASK_GROUP_ROLES_H

#include "postgres.h"

#include "scheduler/order.h"

extern void group_roles_create(MemoryContext context, pairingheap_comparator compare_lanes);
extern GroupRole *group_role_find(const char *name);
extern GroupRole *group_role_find_or_add(const char *name);
extern GroupRole *group_role_of(Oid role);
extern void group_role_free(GroupRole *role);

#endif /* PG_TASK_GROUP_ROLES_H */
