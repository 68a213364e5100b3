/*
 * shared.h
 *		What the processes of pg_task share: slots, rings and hints.
 *
 * Three kinds of lock, all LWLocks of the tranche "pg_task", always taken in
 * this order: the directory lock, then one scheduler's lock or one executor's
 * lock.  Nothing is allocated while one is held, and none is held over a wait.
 *
 * A slot belongs to whoever set in_use; its generation grows with every use,
 * so that a process started for an earlier use finds out that it came late.
 */
#ifndef PG_TASK_SHARED_H
#define PG_TASK_SHARED_H

#include "postgres.h"

#include "access/xact.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/lwlock.h"

#include "shared/clock.h"
#include "shared/task.h"

#define SHARED_RING 16		  /* tasks that one executor may hold */
#define SHARED_REQUEST 1024	  /* longer requests are read from the table */
#define SHARED_HINTS 32		  /* groups that one commit tells of one by one */
#define SHARED_ALL_HINTS 128  /* that may wait to be noticed: no commit takes all the room */
#define SHARED_HOLDS 64		  /* databases that may be held beside one for each process */
#define SHARED_DATABASES 1024 /* databases that may share schedulers' slots by turns */
#define SHARED_SETTINGS 4096  /* counters of changed settings */

/* Reference to a process: an index into ProcGlobal->allProcs, or this. */
#define SHARED_NO_PROC (-1)

/* A group in which rows became due for planning, and the first such place. */
typedef struct SharedHint
{
	char queue[NAMEDATALEN];
	NameData role;
	int64 role_id;
	int32 max;
	int32 priority;
	TaskPlace place;
} SharedHint;

/* What a commit may have done beside what hints can say. */
typedef enum SharedEvents
{
	SHARED_SCAN = 1,	  /* rows wait that no hint tells of */
	SHARED_RECONCILE = 2, /* a row was changed that is WORK */
	SHARED_EXPIRY = 4	  /* rows wait that are given up some time */
} SharedEvents;

/* The scheduler of one database. */
typedef struct SharedScheduler
{
	/* guarded by the directory lock */
	bool in_use;
	bool attached; /* the process has arrived */
	uint32 generation;
	Oid database;
	Oid user; /* on whose behalf the table is made */
	int proc;
	bool leave; /* asked to go, or goes of its own accord */
	bool wants; /* has work, but no executor for it */
	MonoTime wants_since;
	MonoTime granted; /* when it last got an executor */
	bool isolated;	  /* has chosen a task that is to run in isolation, and not yet handed it out */
	bool wants_isolated; /* has one, but another database's is at work */

	MonoTime due; /* see SharedDatabase; written when it goes */

	/* written by the scheduler without a lock */
	pg_atomic_uint64 renewed;	 /* when its iteration began; see arbiter_renew */
	pg_atomic_uint64 idle_since; /* when it last had something to do; 0: it has now */

	/* guarded by "lock" */
	LWLock *lock;
	Oid relid;	/* the task table, InvalidOid while there is none */
	int events; /* SharedEvents: what happened beside the hints */
	int nhints;
	SharedHint hints[SHARED_ALL_HINTS];
} SharedScheduler;

/*
 * A database that is to have a scheduler, and what its last one left.  Made by the
 * supervisor; one that finds no place here is visited now and then.
 */
typedef struct SharedDatabase
{
	Oid database;	 /* InvalidOid: free */
	Oid relid;		 /* the task table */
	MonoTime due;	 /* when it has something to do next, as far as is known */
	MonoTime marked; /* since when something waits there for a scheduler; 0: nothing */
} SharedDatabase;

/* One claimed task on its way to an executor. */
typedef struct SharedTask
{
	TaskRun run;
	Oid relid;					 /* the task table that it is from */
	Oid role;					 /* the executor refuses what is not its role's */
	char role_name[NAMEDATALEN]; /* as the row has it */
	int64 timeout;				 /* microseconds, -1: the column is NULL */
	bool repeats;
	bool deletes;
	int8 format;			 /* a ResultFormat, -1: the column is NULL */
	bool notify;			 /* wake the scheduler when it is finished */
	bool isolated;			 /* the server may crash because of it */
	bool cancelled;			 /* its row was taken from it: it must not go on */
	uint32 elapsed;			 /* set by the executor: microseconds it took */
	char queue[NAMEDATALEN]; /* clipped, for display */
	int32 request_len;		 /* -1: too long, read it from the table */
	char request[SHARED_REQUEST];
} SharedTask;

/*
 * An executor, and the ring of tasks it was handed.  The three positions only
 * grow: done <= taken <= assigned <= done + SHARED_RING.  The scheduler moves
 * "assigned" (back, too, down to "taken"), the executor the other two.
 */
typedef struct SharedExecutor
{
	/* guarded by the directory lock */
	bool in_use;
	bool gone; /* left with tasks in its ring: the scheduler accounts for them */
	uint32 generation;
	Oid database;
	Oid role;
	int proc;

	/* guarded by "lock"; "leave" and "idle_since" may be read with the directory lock alone */
	LWLock *lock;
	bool ready;	   /* connected, takes tasks */
	bool leave;	   /* asked to go when the task in hand is finished */
	bool reserved; /* a task is being claimed for it: not idle, whatever the ring says */
	int pid;
	MonoTime started; /* when it was reserved */
	MonoTime idle_since;
	MonoTime taken_at;
	uint32 assigned;
	uint32 taken;
	uint32 done;
	uint32 notify_at;	 /* wake the scheduler when "done" gets here */
	bool cancel_sent;	 /* a SIGINT is on its way, for a task that is marked as cancelled */
	TaskFailure failure; /* of the task in hand, when the process ends */
	SharedTask ring[SHARED_RING];

	/* written by the processes concerned, read when all of them are gone: see crash.c */
	bool quit;				  /* was told to quit */
	pg_atomic_uint32 workers; /* parallel workers that are at work for it */
} SharedExecutor;

/*
 * A prepared transaction that changed settings, and the counters that its commit is to
 * raise.  The table is empty after a restart: all executors are new then, and what commits
 * later is seen by those that start later.
 */
typedef struct SharedPrepared
{
	uint32 generation;
	char gid[GIDSIZE]; /* empty: free */
	uint8 counters[SHARED_SETTINGS / 8];
} SharedPrepared;

/* A database that somebody wants to have for himself: no process of ours enters. */
typedef struct SharedHold
{
	Oid database; /* InvalidOid: free */
	int proc;
} SharedHold;

typedef struct SharedState
{
	LWLock *directory;
	int supervisor;								/* guarded by the directory lock */
	bool crowded;								/* likewise; databases wait for a scheduler */
	SharedDatabase databases[SHARED_DATABASES]; /* likewise */
	int nholds;									/* likewise; holds that are taken */
	SharedHold *holds;		   /* likewise; one for each process, then SHARED_HOLDS others */
	ConditionVariable vacated; /* a process of ours has left a database */
	pg_atomic_uint32 settings[SHARED_SETTINGS]; /* see shared_settings */
	uint64 seed;								/* fixed */
	bool prepared_lost;							/* guarded by the directory lock */
	int nprepared;								/* fixed */
	SharedPrepared *prepared;					/* guarded by the directory lock */
	int nprocs;									/* fixed */
	int nschedulers;							/* fixed */
	int nexecutors;								/* fixed */
	SharedScheduler *schedulers;
	SharedExecutor *executors;
} SharedState;

/* NULL where the library was not preloaded. */
extern SharedState *Shared;

extern void shared_define(void);
extern void shared_wake(int proc);
extern void shared_wake_supervisor(void);
extern uint32 shared_settings(Oid database, Oid role);
extern void shared_settings_changed(Oid object);
extern void shared_prepared_add(const char *gid, const Oid *objects, int count);
extern void shared_prepared_find(const char *gid, SharedPrepared *prepared);
extern void shared_prepared_remove(const SharedPrepared *prepared, bool committed);

/* Schedulers. */
extern SharedScheduler *shared_scheduler_reserve(Oid database, Oid user);
extern SharedScheduler *shared_scheduler_attach(int slot, uint32 generation);
extern void shared_scheduler_release(SharedScheduler *me);
extern void shared_scheduler_leave(SharedScheduler *scheduler);
extern bool shared_scheduler_leaves(SharedScheduler *me);
extern SharedScheduler *shared_scheduler_find(Oid database);
extern void shared_scheduler_wake(Oid database);
extern Oid shared_scheduler_relid(Oid database);
extern Oid shared_database_relid(Oid database);
extern SharedDatabase *shared_database_find(Oid database);
extern void shared_database_add(Oid database);
extern void shared_database_remove(Oid database);
extern void shared_crowd(bool crowded);
extern void shared_scheduler_publish(SharedScheduler *me, Oid relid);
extern bool shared_hint_merge(SharedHint *hints, int *count, int size, const SharedHint *hint);
extern void
shared_scheduler_hint(Oid database, Oid relid, const SharedHint *hints, int count, int events);
extern int shared_scheduler_take_hints(SharedScheduler *me, SharedHint *hints, int *events);

/* Executors. */
extern SharedExecutor *shared_executor_attach(int slot, uint32 generation);
extern void shared_executor_release(SharedExecutor *me);
extern void shared_executor_forget(SharedExecutor *executor);
extern void shared_executor_leave(SharedExecutor *executor);
extern SharedExecutor *shared_executor_of(int proc);
extern int64 shared_task_of(int proc);

#endif /* PG_TASK_SHARED_H */
