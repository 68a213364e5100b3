/*
 * shared.h
 *		Shared memory of pg_task: slots, rings and hints.
 *
 * Locks.  All are LWLocks of the tranche "pg_task": the directory lock, one lock for each scheduler
 * slot and one for each executor slot, and the lock of the statistics, which is taken alone.  A
 * process takes the directory lock first, then at most one slot's lock.  While it holds one of them
 * it allocates no memory and does not sleep.
 *
 * A slot is in use from its reservation (by the supervisor for a scheduler, by a scheduler for an
 * executor) until it is released: see slots.c for its states.  Each reservation increments its
 * generation, so that a process that was started for an earlier reservation finds that it came too
 * late.
 *
 * Reads without the lock.  The comment of a field names every reader that does not hold the lock
 * that guards the field.  There are three kinds:
 *
 * - own: the reader is the only writer of the field while the slot is in use;
 * - constant: the field does not change while the slot is in use, and the reader is the process
 *   of the slot or the one that reserved it;
 * - guess: a stale value only causes a superfluous wake-up, or a decision that the next iteration
 *   makes again.
 */
#ifndef PG_TASK_SHARED_H
#define PG_TASK_SHARED_H

#include "postgres.h"

#include "access/xact.h"
#include "pgtime.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/itemptr.h"
#include "storage/lwlock.h"

#include "shared/activity.h"
#include "shared/clock.h"
#include "shared/task.h"

#define SHARED_RING 64		  /* tasks in the ring of one executor */
#define SHARED_REQUEST 1024	  /* bytes of a request, input and meta; more is read from the table */
#define SHARED_HINTS 32		  /* groups that one commit names one by one */
#define SHARED_ALL_HINTS 128  /* hints not taken yet; one role cannot fill them all */
#define SHARED_IDS 64		  /* tasks that commits name one by one, for rows that wait for them */
#define SHARED_DATABASES 1024 /* databases that may share the places for schedulers */
#define SHARED_SETTINGS 4096  /* counters of changed settings */
#define SHARED_WAITERS 256	  /* condition variables of sessions that wait for tasks */

/* A process is an index into ProcGlobal->allProcs, or this. */
#define SHARED_NO_PROC (-1)

/*
 * A hint: a group in which rows now wait, and the first position of these rows.  If there are
 * "several", more may wait behind it.
 */
typedef struct SharedHint
{
	char queue[NAMEDATALEN];
	NameData role;
	int64 role_id;
	int32 max;
	int32 priority;
	TaskPlace place;
	bool several;
} SharedHint;

/* What else a commit may have done: a bit mask. */
typedef enum SharedEvents
{
	SHARED_SCAN = 1,		/* rows wait that no hint names: scan */
	SHARED_RECONCILE = 2,	/* a row in state WORK was changed */
	SHARED_EXPIRY = 4,		/* rows with a column "active" wait: they may expire */
	SHARED_HISTORY = 8,		/* rows with a column "keep" are in a final state */
	SHARED_QUEUES = 16,		/* the queue table was changed */
	SHARED_DEPENDENTS = 32, /* rows wait for other tasks, or such tasks have ended, unnamed */
	SHARED_TAKERS = 64		/* a session waits for tasks */
} SharedEvents;

/* Ids of tasks, each once. */
typedef struct SharedIds
{
	int count;
	int64 ids[SHARED_IDS];
} SharedIds;

/*
 * What a commit reports to the scheduler of a database.  InvalidOid: the task table is not known,
 * and then only the events count.  Likewise while the scheduler prepares the table: it may turn out
 * to be this one.
 */
typedef struct SharedReport
{
	Oid relid;
	int events; /* mask of SharedEvents */
	int nhints;
	const SharedHint *hints;
	const SharedIds *watched; /* tasks for which rows wait now, or which have ended; NULL: none */
} SharedReport;

/* The state of a scheduler's slot.  slots.c has the table of edges. */
typedef enum SchedulerState
{
	SCHEDULER_FREE,
	SCHEDULER_STARTING, /* reserved; no process has attached yet */
	SCHEDULER_RUNNING,	/* the process has attached */
	SCHEDULER_LEAVING	/* it was asked to exit, or exits anyway */
} SchedulerState;

/* The state of an executor's slot.  slots.c has the table of edges. */
typedef enum ExecutorState
{
	EXECUTOR_FREE,
	EXECUTOR_STARTING, /* reserved; the process is not connected yet */
	EXECUTOR_READY,	   /* connected: tasks may be assigned */
	EXECUTOR_LEAVING,  /* exits when its ring is empty: nothing is assigned any more */
	EXECUTOR_GONE	   /* the process has exited with tasks in its ring: a scheduler reaps them */
} ExecutorState;

/*
 * What a scheduler publishes of its work: counts since it has begun, then what is so now.  Times
 * are of the wall clock.
 */
typedef enum SchedulerFigure
{
	FIGURE_BEGUN,	   /* when the process has attached */
	FIGURE_ITERATIONS, /* of its loop: how often it woke up */
	FIGURE_CLAIMED,	   /* tasks */
	FIGURE_MISSED,	   /* rows that it could not claim: locked, or changed meanwhile */
	FIGURE_ERRORS,	   /* iterations that ended with one */
	FIGURE_FAILING,	   /* 1: its last error lasts, or rows are skipped because of errors */
	FIGURE_HELD,	   /* refused rows, waiting suspects, orphans */
	FIGURE_WANTED,	   /* executors that due tasks lack */
	FIGURE_OLDEST,	   /* first planned time of what waits in no paused queue, by the last scan */
	SCHEDULER_FIGURES
} SchedulerFigure;

#define SHARED_ERROR 256 /* bytes */

/* The last error of the schedulers of a database. */
typedef struct SharedError
{
	TimestampTz at; /* 0: there was none */
	char message[SHARED_ERROR];
} SharedError;

/* The slot of a database's scheduler.  Only the supervisor reserves one. */
typedef struct SharedScheduler
{
	/*
	 * Guarded by the directory lock.  Reads without it:
	 *
	 * "generation", "user" and "database": by the supervisor (own: only it calls
	 * scheduler_slot_reserve, which alone writes them), and by the scheduler (constant).
	 *
	 * "proc": by the scheduler (constant).
	 *
	 * "state": by the supervisor in ask_schedulers_to_exit (guess), and by the scheduler in
	 * must_exit (guess: its latch is set after a change).
	 *
	 * "asked": by the supervisor in scheduler_ended (own: it does not change while the slot is
	 * free, and only the supervisor reserves it).
	 *
	 * "wants", "told", "wants_role" and "isolated": by the scheduler (own).
	 *
	 * "state", "proc" and "database": by the postmaster when all processes are gone; see crash.c.
	 */
	SchedulerState state;
	uint32 generation;
	Oid database;
	Oid user;	/* the role on whose behalf the task table is created */
	int proc;	/* SHARED_NO_PROC until the process has attached */
	bool asked; /* the state was LEAVING when the slot was released */
	bool wants; /* it has tasks to start, but no executor for them */
	bool told;	/* it has said whether it wants: until then, what its predecessor said holds */
	MonoTime wants_since;
	Oid wants_role; /* it needs an executor of this role, which has as many as it may; or InvalidOid
					 */
	MonoTime wants_role_since;
	MonoTime granted;	 /* when the database last got an executor */
	bool isolated;		 /* it has chosen an isolated task and not yet assigned it */
	bool wants_isolated; /* it has one to start, but another database's is running */

	/*
	 * Atomics, written by the scheduler without a lock.  scheduler_slot_reserve resets both, and
	 * the supervisor resets "idle_since".  Any process may read them.
	 */
	pg_atomic_uint64 renewed;	 /* start of its iteration; 0: not connected yet */
	pg_atomic_uint64 idle_since; /* start of its idleness; 0: not idle, or not asked for */

	/* The same: the scheduler writes them while it is attached, and sets all to 0 first. */
	pg_atomic_uint64 figures[SCHEDULER_FIGURES];

	/*
	 * Written without a lock by the scheduler and its SIGQUIT handler.  The postmaster reads it
	 * when all processes are gone: see crash.c.
	 */
	bool innocent; /* the process sleeps, or got SIGQUIT: if the server crashes, it is not by it */

	/*
	 * Guarded by "lock".  A backend adds hints and events while it holds the directory lock in
	 * shared mode as well.  Therefore free_scheduler (slots.c), which holds that lock in exclusive
	 * mode, reads these fields without "lock": only the scheduler itself calls
	 * shared_scheduler_publish and shared_scheduler_take.  For the same reason
	 * scheduler_slot_reserve writes them without it.  The supervisor reads "relid" without any lock
	 * (guess, and own when the slot is free).
	 */
	LWLock *lock;
	TimestampTz looks; /* it takes hints by then without being woken; DT_NOEND: unknown, wake it */
	Oid relid;		   /* the task table; InvalidOid until there is one */
	Oid queue_relid;   /* the queue table; InvalidOid if there is none, or it is not known yet */
	int events;		   /* mask of SharedEvents */
	SharedIds watched; /* tasks for which rows wait from now on, or which users have ended */
	int nhints;
	SharedHint hints[SHARED_ALL_HINTS];
} SharedScheduler;

/* What the schedulers of a database have found, for their successors and for others. */
typedef struct SharedFindings
{
	Oid relid;		   /* the task table that was found last */
	Oid owner;		   /* its owner then */
	Oid user;		   /* who was to own it then; InvalidOid: a role that does not exist */
	Oid rebooted;	   /* the table of which the tasks of this start of the server are planned */
	Oid removes;	   /* the table of which the log says that rows are removed */
	bool disabled;	   /* pg_task.enabled is off ... */
	uint32 settings;   /* ... in the settings of the database with this change counter */
	bool absent;	   /* there was no task table so far, and none is to be created */
	bool unserved;	   /* it has no scheduler, because pg_task.database does not name it any more */
	bool away;		   /* the tasks are held back, because the table is away */
	bool owner_code;   /* pg_task.owner_code is on */
	TimestampTz due;   /* when it exited: when a task is due next; it knows of none: DT_NOEND */
	SharedError error; /* the last one */
} SharedFindings;

/*
 * A database that is or was to have a scheduler, and what its last one left.  Guarded by the
 * directory lock.  Only the supervisor adds and removes entries, so stop_leftover_schedulers reads
 * "database" without the lock (own).  A database for which there is no free entry gets a scheduler
 * at regular intervals instead.
 */
typedef struct SharedDatabase
{
	Oid database;	 /* InvalidOid: free */
	MonoTime marked; /* since when something waits for a scheduler; 0: nothing does */
	/* since when its schedulers, which may take turns, want an executor; 0: the last one did not */
	MonoTime wants_since;
	SharedFindings found;
} SharedDatabase;

/*
 * A claimed task in an executor's ring.  The scheduler fills in an entry under the executor's lock,
 * when it assigns the task; the executor copies it under that lock when it takes the task.
 * Exceptions are at the fields.
 */
typedef struct SharedTask
{
	TaskRun run;
	Oid relid;					 /* the task table */
	Oid role;					 /* the executor rejects a task of another role */
	char role_name[NAMEDATALEN]; /* the column "role" */
	TimestampTz planned;		 /* the time that the task was first planned for */
	TimestampTz due;			 /* the time that this run was planned for */
	int64 timeout;				 /* microseconds, -1: neither the column nor the queue says */
	TaskDefaults defaults;		 /* of the queue */
	int8 format;				 /* a ResultFormat, -1: the column is NULL */
	bool trusted;				 /* code of the table's owner may run when its row is written */
	bool notify;				 /* the executor wakes the scheduler when the task has ended */
	bool isolated;				 /* the task may crash the server, so it runs isolated */

	/*
	 * The row was changed: the run must end.  Written by the scheduler under the executor's lock.
	 * The executor reads it without the lock: its SIGINT handler does, which cannot take one.
	 */
	bool cancelled;

	/*
	 * A user interrupts this run, which has failed then.  Written by that backend under the
	 * executor's lock, and by the executor's SIGINT handler without; read and cleared by the
	 * executor without it.
	 */
	bool interrupted;

	/*
	 * How long the run took (us).  Written by the executor under its lock before it moves "done".
	 * The scheduler reads it without the lock once it has seen the new "done" under the lock: then
	 * the executor does not write it any more.
	 */
	uint32 elapsed;
	char queue[TASK_QUEUE_MAX + 1];
	char flow[TASK_NAME_MAX + 1]; /* empty: none */
	int32 request_len;			  /* -1: too long, the executor reads it from the table */
	int32 input_len;			  /* of the column "input", behind the request; 0: NULL */
	int32 meta_len;				  /* of the column "meta", behind both; 0: NULL */
	char request[SHARED_REQUEST];
} SharedTask;

/*
 * The slot of an executor, with its ring of tasks.  Positions in the ring only grow, with one
 * exception each: done <= taken <= assigned <= done + SHARED_RING.  The scheduler moves "assigned";
 * it moves it back to "taken" when it reclaims tasks.  The executor moves "taken" and "done"; it
 * moves "taken" back when it returns tasks of which nothing is left.  The running task is the last
 * one that was taken; those between "done" and it have run in the same batch.
 */
typedef struct SharedExecutor
{
	/*
	 * Written under the directory lock and "lock", both in exclusive mode: a read under either is
	 * exact.  Reads without both:
	 *
	 * "generation": by the scheduler that reserved the slot, until it is released (constant).
	 *
	 * "database", "role" and "proc": by the executor (constant).
	 *
	 * "proc": by other processes only to wake that process (guess).
	 *
	 * "state": by the executor in wait_for_task (guess: its latch is set after a change), and in
	 * the handler of a timer (guess); see run.c.
	 *
	 * "state", "database": by the postmaster when all processes are gone; see crash.c.
	 */
	ExecutorState state;
	uint32 generation;
	Oid database;
	Oid role;
	int proc; /* SHARED_NO_PROC until the process has attached, and when it has exited */

	/*
	 * Guarded by "lock".  Reads without "lock":
	 *
	 * "taken", "done", "taken_at" and "idle_since": by the executor (own).
	 *
	 * "batches": by the executor (guess: that it is set counts for later tasks, too).
	 *
	 * "started": by the scheduler that reserved the slot (constant).
	 *
	 * "reserved", "started", "idle_since", "taken_at", "assigned", "taken" and "done": with the
	 * directory lock alone in arbiter.c and hold_take (guess; evict_idle checks again under
	 * "lock" whether the executor is needed before it asks it to exit).
	 *
	 * "pid" and "had_pid": by the scheduler, with the directory lock alone (they are written under
	 * both).
	 *
	 * "taken": by the scheduler in reap_dead, when the process is gone.
	 *
	 * "reserved" is beside the state: a READY executor is idle only if it is not set.
	 */
	LWLock *lock;
	bool reserved;	  /* a task is being claimed for it: not idle, even if the ring is empty */
	int pid;		  /* 0 until the process has connected */
	bool had_pid;	  /* the process of the last reservation, which has exited, had connected */
	MonoTime started; /* when it was reserved */
	MonoTime idle_since;
	MonoTime taken_at;
	uint32 assigned;
	uint32 taken;
	uint32 done;
	uint32 notify_at; /* the executor wakes the scheduler when "done" is this */
	bool batches;	  /* tasks were assigned whose queue has batches; it remains so */

	/*
	 * SIGINT was sent for a task with "cancelled" or "interrupted".  Written under the lock, but
	 * the executor's SIGINT handler reads and clears it without the lock.
	 */
	bool cancel_sent;

	/*
	 * How the running task has failed, when the process exits.  The executor writes and reads it
	 * without a lock (own), the scheduler reads it without once the process is gone.
	 */
	TaskFailure failure;
	SharedTask ring[SHARED_RING];

	/*
	 * Written without a lock: "quit" by the executor's SIGQUIT handler, "workers" by its parallel
	 * workers.  The postmaster reads both when all processes are gone, and with them, without a
	 * lock, "state", "database", "taken", "done" and "ring": see crash.c.
	 */
	bool quit;				  /* the process got SIGQUIT */
	pg_atomic_uint32 workers; /* parallel workers that are running for it */

	/* Written by the executor, read by anybody, both without a lock: see activity.c. */
	SharedActivity activity;
} SharedExecutor;

/*
 * What the configuration says of tasks, and sessions may have set otherwise for themselves.  Zones
 * are empty before the supervisor has started.
 */
typedef struct SharedConfigured
{
	char sessions[TZ_STRLEN_MAX + 1];		  /* TimeZone: a name, or empty */
	char tasks[TZ_STRLEN_MAX + 1];			  /* pg_task.timezone: the same */
	int format;								  /* pg_task.format: a ResultFormat */
	char on_failure[TASK_ON_FAILURE_MAX + 1]; /* pg_task.on_failure */
} SharedConfigured;

typedef struct SharedState
{
	LWLock *directory;

	/*
	 * Guarded by the directory lock.  Reads without it:
	 *
	 * "crowded": by the supervisor (own), and by a scheduler in show_idle (guess: the schedulers
	 * are woken when it changes).
	 *
	 * "enabled": by sessions (guess); the supervisor writes it without, after a reload.
	 */
	int supervisor; /* the supervisor's process */
	bool crowded;	/* more databases need a scheduler than there are places */
	bool enabled;	/* pg_task.enabled of the server: that of a database may differ */
	int ndatabases;
	SharedDatabase databases[SHARED_DATABASES];
	int nholds; /* holds that are taken */
	Oid *holds; /* one for each process: a database that it needs for itself, or InvalidOid */

	ConditionVariable vacated; /* broadcast when a process of pg_task has left a database */
	ConditionVariable waiters[SHARED_WAITERS];	/* broadcast when a task has ended; see waiters.c */
	pg_atomic_uint32 ends[SHARED_WAITERS];		/* how many have, by condition variable */
	SharedConfigured configured;				/* guarded by the directory lock */
	pg_atomic_uint32 settings[SHARED_SETTINGS]; /* change counters; see memory.c */
	pg_atomic_uint32 settings_changes;			/* of any of them */
	pg_atomic_uint32 databases_changes;			/* of databases, roles and holds */
	uint64 seed;								/* secret, never changes; see memory.c */
	uint64 restore;								/* never changes; see memory.c */
	bool recovers;								/* never changes: it was started to recover */
	pg_atomic_uint64 serving_since;				/* a TimestampTz */
	int nprocs;									/* never changes, as what follows it */
	int nschedulers;
	int nexecutors;
	SharedScheduler *schedulers;
	SharedExecutor *executors;
	struct SharedTakers *takers; /* see takers.h */
} SharedState;

/* NULL if the library was not preloaded. */
extern SharedState *Shared;

extern void shared_request_memory(void);
extern void shared_attach_memory(void);

/* While shared_lacks_standby keeps tasks from starting, it is called again at this interval (ms).
 */
#define SHARED_STANDBY_MS 1000

extern bool shared_lacks_standby(void);
extern void shared_require(void);
extern void shared_wake(int proc);
extern void shared_wake_supervisor(void);
extern void shared_databases_changed(void);
extern uint32 shared_settings(Oid database, Oid role);
extern uint32 shared_settings_of_database(Oid database);
extern void shared_settings_changed(Oid object);

/* Databases and their schedulers. */
extern Oid shared_scheduler_relid(Oid database, bool queues);
extern SharedDatabase *shared_database_find(Oid database);
extern SharedDatabase *shared_database_add(Oid database);
extern void shared_database_remove(Oid database);
extern SharedFindings shared_database_found(Oid database);
extern void shared_database_publish(Oid database, const SharedFindings *found);
extern void shared_database_report(Oid database, const char *error);
extern bool shared_database_is_disabled(Oid database, const SharedFindings *found);
extern void shared_database_mark(Oid database);
extern void shared_scheduler_publish(SharedScheduler *me, Oid relid, bool queues);
extern bool shared_hint_merge(SharedHint *hints, int *count, int size, const SharedHint *hint);
extern bool shared_ids_add(SharedIds *ids, int64 id);
extern void shared_scheduler_report(Oid database, const SharedReport *report);
extern int
shared_scheduler_take(SharedScheduler *me, SharedHint *hints, SharedIds *watched, int *events);
extern void shared_scheduler_sleep(SharedScheduler *me, TimestampTz until);
extern bool shared_scheduler_has_events(SharedScheduler *me, int events);

/* Databases that a command needs for itself. */
extern bool shared_database_is_held(Oid database);
extern void hold_take(Oid database);
extern void hold_release(void);

/*
 * Since when this server runs tasks: since it was started, or, if it was started as a standby or to
 * recover from an archive, since the end of that recovery.  What was due before that, and has not
 * begun, was missed by this server.  0 before there was a supervisor.
 */
static inline TimestampTz
shared_serving_since(void)
{
	return (TimestampTz) pg_atomic_read_u64(&Shared->serving_since);
}

/* Wake the scheduler of a database, with these events.  If there is none, one is to be started. */
static inline void
shared_scheduler_wake(Oid database, int events)
{
	shared_scheduler_report(database, &(SharedReport){.events = events});
}

#endif /* PG_TASK_SHARED_H */
