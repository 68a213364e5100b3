/*
 * settings.h
 *		The settings of pg_task.
 */
#ifndef PG_TASK_SETTINGS_H
#define PG_TASK_SETTINGS_H

#include "postgres.h"

#include "nodes/pg_list.h"
#include "pgtime.h"

/* The version of the extension that has the functions of this library. */
#define PG_TASK_VERSION "1.0"

/* Value of pg_task.keep and pg_task.keep_failed. */
#define SETTINGS_KEEP_FOR_EVER (-1)

/* Maximum of pg_task.batch: of more subtransactions the server keeps no account in memory. */
#define SETTINGS_BATCH_MAX 64

/* No task.  Any other number may be an id. */
#define SETTINGS_NO_TASK PG_INT64_MIN

/*
 * What a repeating task makes up for: times at which it should have run while it was running, or
 * while no server was.
 */
typedef enum SettingsMissed
{
	MISSED_ONE,	 /* one run as soon as possible, whatever was missed */
	MISSED_NONE, /* no run: it waits for the next time */
	MISSED_ALL	 /* each, in order */
} SettingsMissed;

/* What of tasks is logged: each value demands all that those before it do. */
typedef enum SettingsLog
{
	LOG_TASKS_NONE,
	LOG_TASKS_FAILURES, /* what has failed or was given up */
	LOG_TASKS_ENDS,		/* what has ended, however */
	LOG_TASKS_ALL		/* and what has started */
} SettingsLog;

/* Settings for the tasks of a role, where the columns of a task are NULL. */
typedef struct SettingsTask
{
	int max_executors; /* running at once on this server; 0: no limit */
	int batch;		   /* tasks in a transaction */
	int active;		   /* milliseconds, 0: no limit */
	int retry;
	int delay; /* milliseconds */
	double backoff;
	int keep;			  /* seconds, of DONE and STOP; or SETTINGS_KEEP_FOR_EVER */
	int keep_failed;	  /* the same, of FAIL and GONE */
	int missed;			  /* a SettingsMissed */
	int hold_after;		  /* failed runs in a row; 0: never */
	bool on_failure;	  /* perhaps a request is set: see roles_on_failure */
	int format;			  /* a ResultFormat */
	pg_tz *timezone;	  /* TimeZone of its sessions; never NULL */
	pg_tz *task_timezone; /* pg_task.timezone; NULL: not set */
} SettingsTask;

/*
 * The settings that any file may read.  The server writes them, when it loads the configuration and
 * when a session uses SET.  The last two are written by pg_task.
 */
typedef struct SettingsValues
{
	bool enabled;
	bool require_standby; /* see shared_lacks_standby */
	int max_executors;
	int max_schedulers; /* 0: computed from max_worker_processes */
	int idle_timeout;	/* milliseconds */
	int response_limit; /* bytes */
	int timeout;		/* milliseconds, 0: no limit */
	int max_crashes;
	int stat_max;	/* entries of pg_stat_task */
	int max_takers; /* sessions that wait for tasks at once */
	int max_taken;	/* runs that sessions and programs hold at once */
	int max_lost;
	int lease;			  /* milliseconds */
	bool owner_code;	  /* of the table: it may run for all tasks; only a scheduler reads it */
	int aging;			  /* milliseconds; 0: off */
	int log;			  /* a SettingsLog */
	int log_min_duration; /* milliseconds, of runs; -1: off */
	char *flow;			  /* see settings_label */
	char *meta;			  /* likewise; empty or JSON, see check_meta */
	char *on_failure;	  /* of this process: a session may have set it */
	char *keep_libraries; /* a list of names, see check_libraries */
	SettingsTask task;	  /* without the time zones: see settings_task */

	/*
	 * What pg_task.id shows, see settings_task_id.  An executor writes the id of the task that it
	 * runs.
	 */
	int64 task_id;	 /* or SETTINGS_NO_TASK */
	bool task_tells; /* of a failure: it is of that queue */
} SettingsValues;

extern SettingsValues Settings;

/* Where the task table of a database is, and how often it is scanned. */
typedef struct Location
{
	char *schema; /* NULL: the user's default creation schema */
	char *table;
	bool create; /* when it is missing */
	int period;	 /* milliseconds */
} Location;

/* One entry of pg_task.database. */
typedef struct Target
{
	char *database; /* NULL: all that no other entry names */
	char *role;		/* NULL: the owner of the database */
	bool excluded;	/* it is to have no task table */
} Target;

/* The settings of databases: of a role nothing of them is read.  Ends with NULL. */
extern const char *const settings_of_databases[];

extern void settings_define(void);
extern List *settings_targets(void);
extern SettingsTask settings_task(void);
extern const char *settings_commit(void);
extern int64 settings_task_id(void);
extern const char *settings_label(const char *value, const char *name);
extern SettingsMissed settings_missed(const char *name, SettingsMissed other);
extern const char *settings_missed_word(SettingsMissed missed);
extern int settings_format(const char *name);
extern Location location_of(const char *database);
extern pg_tz *zone_find(const char *name);

#endif /* PG_TASK_SETTINGS_H */
