/*
 * owner.h
 *		Acts as the owner of the task table.
 */
#ifndef PG_TASK_OWNER_H
#define PG_TASK_OWNER_H

#include "postgres.h"

/* What is to be restored afterwards. */
typedef struct OwnerScope
{
	Oid user;
	int context;
	int nest_level; /* 0: the settings are restored */
} OwnerScope;

extern void owner_restrict(Oid user, OwnerScope *scope);
extern void owner_restrict_end(const OwnerScope *scope);
extern void owner_pin_path(void);
extern void owner_become(Oid user, OwnerScope *scope);
extern void owner_become_in_session(Oid user, OwnerScope *scope);
extern void owner_return(const OwnerScope *scope);
extern void owner_abandon(void);
extern bool owner_acts(void);
extern void owner_fire_deferred(void);

#endif /* PG_TASK_OWNER_H */
