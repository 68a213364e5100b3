/*
 * roles.h
 *		What must be known of a role before a task is started as that role.
 */
#ifndef PG_TASK_ROLES_H
#define PG_TASK_ROLES_H

#include "postgres.h"

#include "catalog/pg_database.h"

#include "settings.h"
#include "task/table.h"

/* A role, and the reason if it cannot run tasks. */
typedef struct Role
{
	Oid oid;
	const char *error; /* NULL: no error; in the current memory context */
	const char *hint;  /* what would help; may be NULL */
	int sqlstate;	   /* of the error */
	SettingsTask settings;
	int limit;			/* max. executors of this role on the server; -1: no limit */
	int database_limit; /* max. in this database, for this role; -1: no limit */

	/* filled by roles_find */
	const char *name; /* current name; NULL if it was dropped */
	int64 id;		  /* as roles_bind returns it; 0 if it was dropped */
	bool settled;	  /* the row is bound to this role and has its current name */
} Role;

/* What is to be requested when a task has failed for good, as the settings say. */
typedef struct RoleOnFailure
{
	const char *request;
	const char *as_name; /* who it runs as; NULL: the role of the task */
	int64 as_id;
} RoleOnFailure;

/* What pg_task.database says of a database. */
typedef struct Service
{
	const Target *target; /* the entry for it; NULL: there is none */
	bool wanted;		  /* it is to have a scheduler */
	Oid user;			  /* who is to own its task table: the role of the entry, or its owner */
	bool missing;		  /* there is no role of that name: "user" is the owner */
} Service;

extern Service service_find(const List *targets, const FormData_pg_database *database);
extern Service service_here(void);
extern SettingsTask roles_settings(Oid role);
extern bool roles_on_failure(Oid owner, Oid role, RoleOnFailure *result);
extern int roles_shortest_keep(const TaskTable *table);
extern void roles_define(void);
extern int64 roles_bind(const char *name);
extern Oid roles_bound(const char *name, int64 id);
extern Role roles_find(const char *name, int64 id);
extern Role roles_check(Oid owner, const char *name, int64 id, bool taken);
extern bool roles_startable(Oid owner, const char *name, int64 id, Role *role);
extern bool roles_watch_session(Oid role);
extern bool roles_session_changed(void);
extern bool roles_may_act(Oid user, const char *name, int64 id);

extern uint32 roles_changes(void);

/* For pg_task.c. */
extern void roles_invalidated(void);

#endif /* PG_TASK_ROLES_H */
