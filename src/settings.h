/*
 * settings.h
 *		The settings of pg_task.
 */
#ifndef PG_TASK_SETTINGS_H
#define PG_TASK_SETTINGS_H

#include "postgres.h"

#include "nodes/pg_list.h"
#include "pgtime.h"

/* Value of pg_task.synchronous_commit besides those of the server's own setting. */
#define SETTINGS_COMMIT_AS_DATABASE (-1)

extern bool settings_enabled;
extern int settings_max_executors;
extern int settings_max_schedulers; /* 0: computed from max_worker_processes */
extern int settings_idle_timeout;	/* milliseconds */
extern int settings_response_limit; /* bytes */
extern int settings_default_format; /* a ResultFormat */
extern int settings_timeout;		/* milliseconds, 0: no limit */
extern int settings_max_crashes;

/* Settings for the tasks of a role, where the columns of a task are NULL. */
typedef struct SettingsTask
{
	int max_executors; /* running at once on this server; 0: no limit */
	int active;		   /* milliseconds, 0: no limit */
	int retry;
	int delay; /* milliseconds */
	double backoff;
	pg_tz *timezone; /* time zone of its sessions; never NULL */
} SettingsTask;

/* No task.  Any other number may be an id. */
#define SETTINGS_NO_TASK PG_INT64_MIN

/* Id of the task that this process runs, or SETTINGS_NO_TASK; shown by pg_task.id. */
extern int64 settings_task_id;

/*
 * Finds the id for a process that runs no task itself but may be a parallel worker of one that
 * does.  May be NULL.
 */
extern int64 (*settings_find_task_id)(void);

/* One entry of pg_task.database. */
typedef struct SettingsTarget
{
	char *database;
	char *role; /* NULL: the owner of the database */
} SettingsTarget;

/* Where the task table of a database is, and how often it is scanned. */
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
