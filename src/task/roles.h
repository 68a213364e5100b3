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

	/* see roles_find */
	const char *name; /* that it has now; NULL when it is gone */
	int64 id;		  /* what roles_bind says; 0 when it is gone */
	bool settled;	  /* the row is bound to a role, and has its name */
} Role;

extern SettingsTask roles_settings(Oid role);
extern void roles_define(void);
extern int64 roles_bind(const char *name);
extern Oid roles_bound(const char *name, int64 id);
extern Role roles_find(const char *name, int64 id);
extern bool roles_settled(const char *name, int64 id);
extern Role roles_check(Oid owner, const char *name, int64 id);
extern bool roles_watch_session(Oid role);
extern bool roles_session_changed(void);
extern bool roles_may_act(Oid user, const char *name, int64 id);

#endif /* PG_TASK_ROLES_H */
