/*
 * takers.h
 *		Sessions that take tasks, for programs that do the work outside of the server: those that
 *		wait, and the runs that they hold.
 *
 * All is guarded by one lock, of which nobody who holds it takes another, allocates memory or
 * sleeps.  It is never taken LW_SHARED: any role can call functions that look, and holders that
 * overlap would keep it from the scheduler.  Reads without it, all guesses: "proc" of a scheduler,
 * to wake it; "state" of a session that waits, by that session.
 */
#ifndef PG_TASK_TAKERS_H
#define PG_TASK_TAKERS_H

#include "postgres.h"

#include "lib/ilist.h"
#include "storage/lwlock.h"

#include "shared/activity.h"
#include "shared/clock.h"
#include "shared/task.h"

#define TAKE_MAX 100	 /* tasks that one call takes at most */
#define TAKER_TEXTS 1024 /* bytes of the names that a session waits for */

typedef enum TakerState
{
	TAKER_FREE,
	TAKER_WAITS,
	TAKER_ANSWERED /* the scheduler has chosen tasks for it, or there are none */
} TakerState;

/* What a session wants. */
typedef struct TakerWish
{
	Oid role;	  /* who takes */
	int count;	  /* tasks, at most */
	int lease;	  /* ms; 0: it holds them as long as it lives */
	bool at_once; /* it does not wait if there are none */
	int nqueues;  /* names and patterns; 0: all queues from which it may take ... */
	int nnames;	  /* ... and requests; 0: all */
	int length;	  /* of all of them, each ends with a zero byte */
	char texts[TAKER_TEXTS];
} TakerWish;

/* A session that waits for tasks. */
typedef struct SharedTaker
{
	dlist_node node; /* among those that wait, in the order of their arrival, or that are free */
	TakerState state;
	uint32 generation; /* counts the waits */
	Oid database;
	int proc;
	int pid;
	TimestampTz since;
	TakerWish wish;
	int count; /* of the runs that were chosen for it */
	int taken[TAKE_MAX];
} SharedTaker;

typedef enum TakenState
{
	TAKEN_FREE,
	TAKEN_CHOSEN,  /* for a session that has not fetched it yet */
	TAKEN_FETCHED, /* by a session in a transaction that is open */
	TAKEN_HELD,
	TAKEN_ENDED /* "end" says how: the scheduler is to account for it */
} TakenState;

typedef enum TakenEnd
{
	TAKEN_WRITTEN,	/* its row says so */
	TAKEN_RETURNED, /* it was never handed out */
	TAKEN_LEFT,		/* its row was not that run any more, or the scheduler is to find out */
	TAKEN_LOST,		/* the session that held it has gone, or its lease has expired */
	TAKEN_TIMED_OUT
} TakenEnd;

/* A run in the hands of a session, or of a program. */
typedef struct SharedTaken
{
	dlist_node node; /* among those that are free, or that have ended for its scheduler */
	TakenState state;
	TakenEnd end;
	int scheduler; /* number of the slot of the scheduler that accounts for it; -1: none */
	Oid database;
	Oid relid;
	TaskRun run;
	Oid taker; /* who has the rights of this role may end it */
	Oid role;  /* of the task */
	int pid;   /* of the session that has taken it */
	int proc;  /* the session that it belongs to, until it is held by a lease; SHARED_NO_PROC */
	int lease; /* ms; 0: held as long as the session lives */
	MonoTime expires;	   /* of the lease; CLOCK_NEVER: it is not held by one */
	MonoTime times_out;	   /* of the run; CLOCK_NEVER: never */
	bool ending;		   /* a transaction that is open has written its end: it lives */
	bool cancelled;		   /* its row was changed: it must end */
	bool notify;		   /* wake the scheduler when it has ended */
	int retries;		   /* unless the row says how many */
	TaskDefaults defaults; /* of its queue */
	char role_name[NAMEDATALEN];
	char queue[TASK_QUEUE_MAX + 1];
	Progress progress; /* for display */
} SharedTaken;

typedef struct SharedTakers
{
	LWLock *lock;
	TimestampTz since; /* when this memory was made */
	int ntakers;	   /* never changes, as what follows it */
	int ntaken;
	SharedTaker *takers;
	SharedTaken *taken;
	dlist_head *ended; /* one for each slot of a scheduler */
	dlist_head waiting;
	dlist_head free_takers;
	dlist_head free_taken;
	int nfree; /* length of the last list */
} SharedTakers;

/* Which run: a number, which may be stale, and what identifies it. */
typedef struct TakenRef
{
	int number;
	TaskRun run;
} TakenRef;

extern Size takers_size(void);
extern void takers_create(void *memory, LWLock *lock);

/* For sessions. */
extern SharedTaker *taker_begin(const TakerWish *wish);
extern int taker_fetch(SharedTaker *me, TakenRef *refs);
extern void taker_withdraw(SharedTaker *me);
extern bool taken_find(TakenRef *ref, SharedTaken *copy);
extern void taken_hold(TakenRef ref);
extern void taken_set_ending(TakenRef ref, bool ending);
extern void taken_end(TakenRef ref, TakenEnd end);
extern bool taken_renew(TakenRef ref, int lease, const ProgressReport *report);
extern void taken_session_ended(void);
extern bool taken_look(Oid database, int *number, SharedTaken *copy);
extern void taken_database_dropped(Oid database);

/* For a scheduler, whose slot has this number. */
extern int takers_waiting(Oid database, int *numbers, uint32 *generations);
extern bool taker_wants(const TakerWish *wish, const char *request);
extern bool takers_wish(int number, uint32 generation, TakerWish *wish, int *pid);
extern int taken_give(int number, uint32 generation, const SharedTaken *run);
extern void takers_answer(int number, uint32 generation);
extern int taken_keep(const SharedTaken *run);
extern int taken_adopt(Oid database, int scheduler, int after, SharedTaken *copy);
extern int taken_reap(int scheduler, SharedTaken *ended);
extern MonoTime taken_expire(int scheduler, MonoTime now);
extern void taken_cancel(int number);
extern void taken_abandon(int scheduler);

#endif /* PG_TASK_TAKERS_H */
