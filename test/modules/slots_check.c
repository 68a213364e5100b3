/*
 * slots_check.c
 *		Unit test of the edges of slots, run in an ordinary backend.
 *
 * src/shared/slots.c is compiled into this library and works on a slot in plain memory.  An
 * assertion that fails is an error here, not a crash: slot_edge(kind, state, attached, edge) tries
 * one edge from one state, and returns the new state, or "refused" if an assertion forbids it.
 * "attached" says whether a process is attached, this one.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#define REFUSED "assertion failed"

#undef Assert
#define Assert(condition)         \
	do                            \
	{                             \
		if (!(condition))         \
			elog(ERROR, REFUSED); \
	} while (0)

#include "shared/slots.c"

PG_MODULE_MAGIC;

extern PGDLLEXPORT Datum slot_edge(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(slot_edge);

#define DATABASE 5
#define DATABASE_HELD 6

/* What slots.c calls in other files. */
SharedState *Shared;
static SharedDatabase entry = {.database = DATABASE};

void
shared_wake(int proc pg_attribute_unused())
{
}

SharedDatabase *
shared_database_find(Oid database)
{
	return database == DATABASE ? &entry : NULL;
}

void
shared_database_mark(Oid database pg_attribute_unused())
{
}

bool
hold_exists_locked(Oid database)
{
	return database == DATABASE_HELD;
}

MonoTime
clock_mono(void)
{
	return (MonoTime){1};
}

static LWLock *
make_lock(void)
{
	LWLock *lock = palloc(sizeof(LWLock));

	LWLockInitialize(lock, LWTRANCHE_FIRST_USER_DEFINED);
	return lock;
}

/* Shared memory with one slot of each kind.  This process is the supervisor. */
static void
make_memory(void)
{
	Shared = palloc0(sizeof(SharedState));
	Shared->directory = make_lock();
	Shared->supervisor = COMPAT_MY_PROC;
	ConditionVariableInit(&Shared->vacated);
	Shared->nschedulers = Shared->nexecutors = 1;
	Shared->schedulers = palloc0(sizeof(SharedScheduler));
	Shared->schedulers[0].lock = make_lock();
	Shared->schedulers[0].proc = SHARED_NO_PROC;
	Shared->schedulers[0].generation = 7;
	pg_atomic_init_u64(&Shared->schedulers[0].renewed, 0);
	pg_atomic_init_u64(&Shared->schedulers[0].idle_since, 0);
	Shared->executors = palloc0(sizeof(SharedExecutor));
	Shared->executors[0].lock = make_lock();
	Shared->executors[0].proc = SHARED_NO_PROC;
	Shared->executors[0].generation = 7;
	pg_atomic_init_u32(&Shared->executors[0].workers, 0);
}

static const char *const scheduler_states[] = {"FREE", "STARTING", "RUNNING", "LEAVING"};
static const char *const executor_states[] = {"FREE", "STARTING", "READY", "LEAVING", "GONE"};

static int
find_name(const char *const *names, int count, const char *name)
{
	int i;

	for (i = 0; i < count; i++)
		if (strcmp(names[i], name) == 0)
			return i;
	elog(ERROR, "no such state: %s", name);
}

static void
try_scheduler_edge(SharedScheduler *slot, const char *edge)
{
	if (strcmp(edge, "reserve") == 0)
		(void) scheduler_slot_reserve(slot->state == SCHEDULER_FREE ? DATABASE : DATABASE + 2, 10);
	else if (strcmp(edge, "reserve held") == 0)
		(void) scheduler_slot_reserve(DATABASE_HELD, 10);
	else if (strcmp(edge, "attach") == 0)
		(void) scheduler_slot_attach(0, 7);
	else if (strcmp(edge, "attach late") == 0)
		(void) scheduler_slot_attach(0, 6);
	else if (strcmp(edge, "leave") == 0)
		scheduler_slot_leave(slot);
	else if (strcmp(edge, "leave unlocked") == 0)
		scheduler_slot_leave_locked(slot);
	else if (strcmp(edge, "release") == 0)
		scheduler_slot_release(slot);
	else if (strcmp(edge, "withdraw") == 0)
		scheduler_slot_withdraw(slot, 7);
	else if (strcmp(edge, "withdraw late") == 0)
		scheduler_slot_withdraw(slot, 6);
	else
		elog(ERROR, "no such edge: %s", edge);
}

static void
reserve_executor(bool locked)
{
	if (locked)
		LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	(void) executor_slot_reserve(DATABASE + 1, 10, (MonoTime){1});
	if (locked)
		LWLockRelease(Shared->directory);
}

static void
leave_executors(void)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	executor_slots_leave(DATABASE);
	LWLockRelease(Shared->directory);
}

static void
forget_executors(void)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	(void) executor_slots_forget(DATABASE);
	LWLockRelease(Shared->directory);
}

static void
try_executor_edge(SharedExecutor *slot, const char *edge)
{
	if (strcmp(edge, "reserve") == 0)
		reserve_executor(true);
	else if (strcmp(edge, "reserve unlocked") == 0)
		reserve_executor(false);
	else if (strcmp(edge, "attach") == 0)
		(void) executor_slot_attach(0, 7);
	else if (strcmp(edge, "attach late") == 0)
		(void) executor_slot_attach(0, 6);
	else if (strcmp(edge, "connected") == 0)
		executor_slot_connected(slot);
	else if (strcmp(edge, "leave") == 0)
		executor_slot_leave(slot, 7);
	else if (strcmp(edge, "leave late") == 0)
		executor_slot_leave(slot, 6);
	else if (strcmp(edge, "leave unlocked") == 0)
		executor_slot_leave_locked(slot);
	else if (strcmp(edge, "leave all") == 0)
		leave_executors();
	else if (strcmp(edge, "retire") == 0)
		(void) executor_slot_retire(slot);
	else if (strcmp(edge, "release") == 0)
		executor_slot_release(slot);
	else if (strcmp(edge, "forget") == 0)
		executor_slot_forget(slot, 7);
	else if (strcmp(edge, "forget late") == 0)
		executor_slot_forget(slot, 6);
	else if (strcmp(edge, "forget all") == 0)
		forget_executors();
	else
		elog(ERROR, "no such edge: %s", edge);
}

static const char *
scheduler_edge(const char *state, bool attached, const char *edge)
{
	SharedScheduler *slot = &Shared->schedulers[0];

	slot->state = find_name(scheduler_states, lengthof(scheduler_states), state);
	slot->database = DATABASE;
	if (attached)
		slot->proc = COMPAT_MY_PROC;
	try_scheduler_edge(slot, edge);
	return scheduler_states[slot->state];
}

/* The ring of a slot "with tasks" is not empty. */
static const char *
executor_edge(const char *state, bool attached, bool with_tasks, const char *edge)
{
	SharedExecutor *slot = &Shared->executors[0];

	slot->state = find_name(executor_states, lengthof(executor_states), state);
	slot->database = DATABASE;
	if (attached)
		slot->proc = COMPAT_MY_PROC;
	slot->assigned = with_tasks;
	try_executor_edge(slot, edge);
	return executor_states[slot->state];
}

/* Try an edge, and release the locks that it has left locked. */
Datum
slot_edge(PG_FUNCTION_ARGS)
{
	char *kind = text_to_cstring(PG_GETARG_TEXT_PP(0));
	char *state = text_to_cstring(PG_GETARG_TEXT_PP(1));
	bool attached = PG_GETARG_BOOL(2);
	char *edge = text_to_cstring(PG_GETARG_TEXT_PP(3));
	MemoryContext caller = CurrentMemoryContext;
	const char *volatile result = NULL;

	make_memory();
	PG_TRY();
	{
		if (strcmp(kind, "scheduler") == 0)
			result = scheduler_edge(state, attached, edge);
		else
			result = executor_edge(state, attached, strcmp(kind, "executor with tasks") == 0, edge);
		if (LWLockHeldByMe(Shared->directory) || LWLockHeldByMe(Shared->executors[0].lock))
			result = "still_locked";
	}
	PG_CATCH();
	{
		ErrorData *error;

		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		if (strcmp(error->message, REFUSED) != 0)
			PG_RE_THROW();
		FlushErrorState();
		LWLockReleaseAll();
		result = "refused";
	}
	PG_END_TRY();
	PG_RETURN_TEXT_P(cstring_to_text(result));
}
