/*
 * roles.h
 *		What the scheduler has to know of a role before it starts a task.
 */
#ifndef PG_TASK_ROLES_H
#define PG_TASK_ROLES_H

#include "postgres.h"

#include "settings.h"

/* A role, and why it cannot run tasks, if it cannot. */
typedef struct Role
{
	Oid oid;
	const char *error; /* NULL: nothing is wrong; in the current memory context */
	int sqlstate;	   /* of the error */
	SettingsTask settings;
	int limit;			/* executors of it at once, on this server; -1: none */
	int database_limit; /* executors at once in this database, for this role; -1: none */
} Role;

extern SettingsTask roles_settings(Oid role);
extern void roles_define(void);
extern Role roles_check(Oid owner, const char *name);
extern bool roles_may_act(Oid user, const char *name);

#endif /* PG_TASK_ROLES_H */
