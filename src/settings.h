/*
 * settings.h
 *		The settings of pg_task.
 */
#ifndef PG_TASK_SETTINGS_H
#define PG_TASK_SETTINGS_H

#include "postgres.h"

#include "nodes/pg_list.h"
#include "pgtime.h"

/* Values that settings_synchronous_commit may have beside those of the server's own setting. */
#define SETTINGS_COMMIT_AS_DATABASE (-1)

extern bool settings_enabled;
extern int settings_max_executors;
extern int settings_max_schedulers; /* 0: as many as max_worker_processes suggests */
extern int settings_idle_timeout;	/* milliseconds */
extern int settings_response_limit; /* bytes */
extern int settings_default_format; /* a ResultFormat */
extern int settings_timeout;		/* milliseconds, 0 means none */
extern int settings_max_crashes;

/* What is set for the tasks of a role, where their own columns are NULL. */
typedef struct SettingsTask
{
	int max_executors; /* at once, on this server; 0: no limit */
	int active;		   /* milliseconds, 0: for ever */
	int retry;
	int delay; /* milliseconds */
	double backoff;
	pg_tz *timezone; /* of its sessions; never NULL */
} SettingsTask;

/* Outside a task; an id may be any other number. */
#define SETTINGS_NO_TASK PG_INT64_MIN

/* The task that this process runs, or SETTINGS_NO_TASK: what pg_task.id shows. */
extern int64 settings_task_id;

/* Where a process looks that runs no task itself, but may work for one that does; may be NULL. */
extern int64 (*settings_find_task_id)(void);

/* One entry of pg_task.database. */
typedef struct SettingsTarget
{
	char *database;
	char *role; /* NULL: the owner of the database */
} SettingsTarget;

/* Where the task table of one database is, and how often it is looked at. */
typedef struct SettingsTable
{
	char *schema; /* NULL: the user's default creation schema */
	char *table;
	int period; /* milliseconds */
} SettingsTable;

extern void settings_define(void);
extern List *settings_targets(void);
extern SettingsTable settings_table(const char *database);
extern SettingsTask settings_task(void);
extern const char *settings_commit(void);
extern int settings_format(const char *name);
extern bool settings_keeps_library(const char *file);

#endif /* PG_TASK_SETTINGS_H */
