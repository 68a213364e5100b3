/*
 * slots_check.c
 *		Unit test of the edges of slots, and of what remains of a scheduler, run in an ordinary
 *		backend.
 *
 * Files of src/shared are compiled into this library and work on plain memory.  An assertion that
 * fails is an error here, not a crash: slot_edge(kind, state, attached, edge) tries one edge from
 * one state, and returns the new state, or "refused" if an assertion forbids it.  "attached" says
 * whether a process is attached, this one.  slot_needs(steps) goes through the life of a scheduler,
 * and returns what its database needs then.  slot_databases(databases, steps, seed) adds, removes
 * and marks databases at random, and returns how many have an entry at most; negative: the line of
 * what does not hold.
 */
#include "postgres.h"

#include "common/pg_prng.h"
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

/* No time passes, and nobody waits. */
#include "shared/clock.h"
#define clock_mono() ((MonoTime){1})
#define clock_ms_until(now, moment) ((void) (moment), 0L)

#include "shared/databases.c"
#include "shared/hints.c"
#include "shared/slots.c"

PG_MODULE_MAGIC;

extern PGDLLEXPORT Datum slot_edge(PG_FUNCTION_ARGS);
extern PGDLLEXPORT Datum slot_needs(PG_FUNCTION_ARGS);
extern PGDLLEXPORT Datum slot_databases(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(slot_edge);
PG_FUNCTION_INFO_V1(slot_needs);
PG_FUNCTION_INFO_V1(slot_databases);

#define DATABASE 5
#define DATABASE_HELD 6
#define FIRST 10 /* of many databases */
#define TABLE 20

/* What these files call in others. */
SharedState *Shared;
static uint32 settings;

void
shared_wake(int proc pg_attribute_unused())
{
}

uint32
shared_settings_of_database(Oid database pg_attribute_unused())
{
	return settings;
}

void
shared_databases_changed(void)
{
}

int
crash_holds(Oid database pg_attribute_unused())
{
	return 0;
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
	Shared->nprocs = Shared->nholds = 1;
	Shared->holds = palloc(sizeof(Oid));
	Shared->holds[0] = DATABASE_HELD;
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
	(void) shared_database_add(DATABASE);
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
		leave_scheduler(slot);
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
leave_executors(bool forget)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	(void) executor_slots_leave(DATABASE, forget);
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
		leave_executors(false);
	else if (strcmp(edge, "retire") == 0)
		(void) executor_slot_retire(slot);
	else if (strcmp(edge, "release") == 0)
		executor_slot_release(slot);
	else if (strcmp(edge, "forget") == 0)
		executor_slot_forget(slot, 7);
	else if (strcmp(edge, "forget late") == 0)
		executor_slot_forget(slot, 6);
	else if (strcmp(edge, "forget all") == 0)
		leave_executors(true);
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

/* One step of a scheduler of the database, or of what happens beside it. */
static void
take_step(const char *step)
{
	SharedScheduler *slot = &Shared->schedulers[0];

	if (strcmp(step, "start") == 0)
	{
		(void) scheduler_slot_reserve(DATABASE, 10);
		(void) scheduler_slot_attach(0, slot->generation);
	}
	else if (strcmp(step, "publish") == 0)
		shared_scheduler_publish(slot, TABLE, false);
	else if (strcmp(step, "disable") == 0 || strcmp(step, "absent") == 0)
	{
		SharedFindings found = shared_database_found(DATABASE);

		if (strcmp(step, "disable") == 0)
		{
			found.disabled = true;
			found.settings = settings;
		}
		else
			found.absent = true;
		shared_database_publish(DATABASE, &found);
	}
	else if (strcmp(step, "settings") == 0)
		settings++;
	else if (strcmp(step, "wake") == 0)
		shared_scheduler_wake(DATABASE, 0);
	else if (strcmp(step, "hint") == 0)
		shared_scheduler_report(DATABASE,
								&(SharedReport){.relid = TABLE + 1, .events = SHARED_SCAN});
	else if (strcmp(step, "crash") == 0)
	{
		Shared->executors[0].state = EXECUTOR_GONE;
		Shared->executors[0].database = DATABASE;
	}
	else
		try_scheduler_edge(slot, step);
}

Datum
slot_needs(PG_FUNCTION_ARGS)
{
	char *steps = text_to_cstring(PG_GETARG_TEXT_PP(0));
	StringInfoData result;
	SharedFindings found;
	char *step;

	make_memory();
	for (step = strtok(steps, " "); step; step = strtok(NULL, " "))
		take_step(step);
	found = shared_database_found(DATABASE);
	initStringInfo(&result);
	if (shared_database_is_disabled(DATABASE, &found))
		appendStringInfoString(&result, "disabled ");
	if (found.absent)
		appendStringInfoString(&result, "absent ");
	if (Shared->databases[0].marked.us != 0)
		appendStringInfoString(&result, "marked ");
	PG_RETURN_TEXT_P(cstring_to_text(result.data));
}

/* A database, and what is to be known of it. */
typedef struct Database
{
	bool added;
	bool marked; /* since its last scheduler was started */
} Database;

/* Return from the check unless this holds. */
#define CHECK(condition)      \
	do                        \
	{                         \
		if (!(condition))     \
			return -__LINE__; \
	} while (0)

static void
mark_database(Oid database)
{
	LWLockAcquire(Shared->directory, LW_EXCLUSIVE);
	shared_database_mark(database);
	LWLockRelease(Shared->directory);
}

/* The supervisor starts a scheduler in each database. */
static int
start_schedulers(Database *all, int count)
{
	int i;

	for (i = FIRST; i < FIRST + count; i++)
	{
		all[i].marked = false;
		if (all[i].added)
			CHECK(scheduler_slot_reserve(i, 10) == &Shared->schedulers[0]);
		scheduler_slot_withdraw(&Shared->schedulers[0], Shared->schedulers[0].generation);
	}
	return 0;
}

/* Is each database found that has an entry, and no other? */
static int
check_databases(const Database *all, int count)
{
	int i;

	LWLockAcquire(Shared->directory, LW_SHARED);
	for (i = FIRST; i < FIRST + count; i++)
	{
		SharedDatabase *entry = shared_database_find(i);

		CHECK((entry != NULL) == all[i].added);
		CHECK(entry == NULL || entry->database == (Oid) i);
		CHECK(entry == NULL || (entry->marked.us != 0) == all[i].marked);
	}
	LWLockRelease(Shared->directory);
	return 0;
}

static int
change_database(Database *all, int which, int action, int *count)
{
	if (action == 0)
	{
		shared_database_remove(which);
		*count -= all[which].added;
		all[which].added = all[which].marked = false;
	}
	else if (action < 8)
	{
		bool added = shared_database_add(which) != NULL;

		CHECK(added == (all[which].added || *count < SHARED_DATABASES));
		*count += added && !all[which].added;
		all[which].added = added;
	}
	else
	{
		mark_database(which);
		all[which].marked = all[which].added;
	}
	return 0;
}

static int
check_random(int databases, int steps, pg_prng_state *prng)
{
	Database *all = palloc0((FIRST + databases) * sizeof(Database));
	int count = 0;
	int most = 0;
	int i;

	for (i = 0; i < databases + steps; i++)
	{
		/* first all of them are added */
		int which = FIRST + (i < databases ? i : (int) (pg_prng_uint64(prng) % databases));
		int action = i < databases ? 1 : (int) (pg_prng_uint64(prng) % 10);
		int fault = change_database(all, which, action, &count);

		most = Max(most, count);
		if (fault == 0 && i % 400 == 0)
			fault = check_databases(all, databases);
		if (fault == 0 && i % 3000 == 0)
			fault = start_schedulers(all, databases);
		if (fault != 0)
			return fault;
	}
	return most;
}

Datum
slot_databases(PG_FUNCTION_ARGS)
{
	pg_prng_state prng;

	pg_prng_seed(&prng, PG_GETARG_INT64(2));
	make_memory();
	shared_database_remove(DATABASE);
	PG_RETURN_INT32(check_random(PG_GETARG_INT32(0), PG_GETARG_INT32(1), &prng));
}
