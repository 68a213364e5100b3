/*
 * cleanup.c
 *		Resets the session of an executor between tasks.
 *
 * Does what DISCARD ALL does, except for the plan cache, at the lowest cost: temporary objects are
 * dropped in the transaction that writes the outcome, and another one is started only if the last
 * task did something that only a transaction can reset.  If something cannot be reset at all (the
 * state of a library that the task loaded, caches that have grown large), the caller must end the
 * process: the next task gets a new executor.
 *
 * postgres_fdw and dblink keep connections for later statements of the session, and the remote
 * server keeps the state of its session.  If an executor keeps one of these libraries because of
 * pg_task.keep_libraries, it closes their connections after each task, with the functions that the
 * libraries offer to SQL.  Connections of a preloaded library are not closed.
 *
 * This file knows neither tasks nor slots.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "commands/prepare.h"
#include "commands/sequence.h"
#include "common/pg_prng.h"
#include "fmgr.h"
#include "libpq/be-fsstubs.h"
#include "nodes/parsenodes.h"
#include "replication/origin.h"
#include "replication/slot.h"
#include "storage/lwlock.h"
#include "utils/array.h"
#include "utils/elog.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/varlena.h"

#include "compat.h"
#include "executor/cleanup.h"
#include "settings.h"

/*
 * Libraries of the server that keep no state from one task to the next, by prefix of the file
 * name: PL/pgSQL, the JIT provider, a dictionary, and encoding conversions.
 */
static const char *const stateless[] = {
	"plpgsql.",			 "llvmjit.",		  "dict_snowball.", "utf8_and_",		   "euc_",
	"euc2004_sjis2004.", "cyrillic_and_mic.", "latin_and_mic.", "latin2_and_win1250.", NULL,
};

/*
 * The server's catalog caches never shrink.  An executor whose memory exceeds MEMORY_MAX exits;
 * the memory is measured once every MEASURE_EVERY tasks.
 */
#define MEMORY_MAX ((Size) 48 * 1024 * 1024)
#define MEASURE_EVERY 64

/*
 * What tasks have done to this session.  Static, because the hook of commands writes it, and
 * because most of it lasts until the process exits.
 */
static struct
{
	Size libraries;		/* length of the list of loaded ones, as of the last cleanup */
	bool postgres_fdw;	/* a task has loaded this library ... */
	bool dblink;		/* ... or this one */
	bool load;			/* a task has used LOAD */
	bool leaves;		/* a task has used a command that may leave something behind */
	unsigned int tasks; /* that this process has run */
} session;

/* ---- connections to other servers ---- */

/* Call a function of a library, with one argument or none.  Returns 0 for NULL. */
static Datum
call_library(const char *library, const char *function, const Datum *argument)
{
	LOCAL_FCINFO(fcinfo, 1);
	PGFunction address =
		load_external_function(psprintf("$libdir/%s", library), function, true, NULL);
	Datum result;

	InitFunctionCallInfoData(*fcinfo, NULL, argument ? 1 : 0, InvalidOid, NULL, NULL);
	if (argument)
	{
		fcinfo->args[0].value = *argument;
		fcinfo->args[0].isnull = false;
	}
	result = address(fcinfo);
	return fcinfo->isnull ? (Datum) 0 : result;
}

/*
 * Close all connections.  The unnamed one of dblink comes last: dblink_disconnect raises an error
 * if there is none.
 */
static void
close_all_connections(void)
{
	Datum list;
	Datum *names;
	int count;
	int i;

	if (session.postgres_fdw)
		(void) call_library("postgres_fdw", "postgres_fdw_disconnect_all", NULL);
	if (!session.dblink)
		return;
	list = call_library("dblink", "dblink_get_connections", NULL);
	if (list != (Datum) 0)
	{
		deconstruct_array(DatumGetArrayTypeP(list), TEXTOID, -1, false, TYPALIGN_INT, &names, NULL,
						  &count);
		for (i = 0; i < count; i++)
			(void) call_library("dblink", "dblink_disconnect", &names[i]);
	}
	(void) call_library("dblink", "dblink_disconnect", NULL);
}

/* May a task have left connections open that close_connections would close? */
static bool
may_have_connections(void)
{
	return session.postgres_fdw || session.dblink;
}

/*
 * Between tasks: close the connections that the last task left open.  Returns false if that is not
 * possible: the process must exit.
 */
static bool
close_connections(void)
{
	MemoryContext old = CurrentMemoryContext;
	volatile bool closed = true;

	Assert(!IsTransactionState());
	if (!may_have_connections())
		return true;
	StartTransactionCommand();
	PG_TRY();
	{
		close_all_connections();
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		HOLD_INTERRUPTS();
		closed = geterrcode() == ERRCODE_CONNECTION_DOES_NOT_EXIST;
		if (!closed)
			EmitErrorReport();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(old);
	return closed;
}

/* ---- the session ---- */

static bool
starts_with_any(const char *text, const char *const *prefixes)
{
	for (; *prefixes; prefixes++)
		if (strncmp(text, *prefixes, strlen(*prefixes)) == 0)
			return true;
	return false;
}

/* May an executor keep the library in this file of the server's library directory? */
static bool
keeps_library(const char *file)
{
	List *names;
	ListCell *cell;
	bool keeps = false;

	if (!SplitDirectoriesString(pstrdup(Settings.keep_libraries), ',', &names))
		return false;
	foreach(cell, names)
	{
		const char *name = lfirst(cell);
		size_t length = strlen(name);

		keeps |= strncmp(file, name, length) == 0 &&
				 (file[length] == '\0' || strcmp(file + length, DLSUFFIX) == 0);
	}
	list_free_deep(names);
	return keeps;
}

/* May this library, which the server has loaded, keep state between tasks? */
static bool
may_keep_state(const char *path)
{
	const char *slash = strrchr(path, '/');
	const char *file = slash ? slash + 1 : path;

	if (strncmp(path, pkglib_path, strlen(pkglib_path)) != 0)
		return true;
	if (starts_with_any(file, stateless))
		return false;
	if (!keeps_library(file))
		return true;
	session.postgres_fdw |= strcmp(file, "postgres_fdw" DLSUFFIX) == 0;
	session.dblink |= strcmp(file, "dblink" DLSUFFIX) == 0;
	return false;
}

/*
 * Did the task load a library that may keep state?  The server lists those that it has loaded, for
 * parallel workers: paths in this order, each ended by a null byte, and an empty one.  None is ever
 * unloaded.
 */
static bool
has_loaded_state(void)
{
	Size size = EstimateLibraryStateSpace();
	Size seen = session.libraries;
	char *paths;
	const char *path;
	bool found = false;

	if (size == seen)
		return false;
	session.libraries = size;
	paths = palloc(size);
	SerializeLibraryState(size, paths);
	for (path = paths + seen - 1; *path && !found; path += strlen(path) + 1)
		found = may_keep_state(path);
	pfree(paths);
	return found;
}

/*
 * May what was done in this transaction be committed?  Not if there is a state that only the end of
 * the session resets, a replication origin above all: the commit would be marked with it, also if
 * the member of a batch that has set it was rolled back.
 */
bool
cleanup_allows_commit(void)
{
	return COMPAT_SESSION_ORIGIN == 0 && get_backup_status() == SESSION_BACKUP_NONE;
}

/*
 * Does this process hold an advisory lock, of the session or of the transaction?  The server does
 * not tell which of the two it is.  Bounded by the locks of this process in the shared table.
 */
static bool
holds_advisory_lock(void)
{
	bool found = false;
	int i;

	for (i = 0; i < NUM_LOCK_PARTITIONS && !found; i++)
	{
		if (COMPAT_HAS_NO_LOCKS(MyProc, i))
			continue; /* others may add locks of this process, but no advisory ones */
		LWLockAcquire(LockHashPartitionLockByIndex(i), LW_SHARED);
		found = compat_holds_lock_of(MyProc, i, USER_LOCKMETHOD);
		LWLockRelease(LockHashPartitionLockByIndex(i));
	}
	return found;
}

/*
 * A command is about to be executed.  Record a LOAD: it may change the session, whatever it loads;
 * and commands that may leave something in the session that cleanup_member does not reset.
 */
void
cleanup_note_command(const Node *command)
{
	session.load |= IsA(command, LoadStmt);
	session.leaves |= !IsA(command, CopyStmt) && !IsA(command, VariableSetStmt) &&
					  !IsA(command, VariableShowStmt);
}

/* Called once per executor, after it has connected.  Libraries loaded so far may stay. */
void
cleanup_define(void)
{
	session.libraries = EstimateLibraryStateSpace();
}

/*
 * Release the replication slot that the task used when it failed, and drop its temporary slots. For
 * a client the server does so after an error, and when the session ends.
 *
 * The slots are read without a lock: no other process makes this one the user of a slot.
 */
void
cleanup_replication_slots(void)
{
	int i;

	if (MyReplicationSlot != NULL)
		ReplicationSlotRelease();
	for (i = 0; i < max_replication_slots; i++)
		if (COMPAT_IS_MY_REPLICATION_SLOT(ReplicationSlotCtl->replication_slots[i]))
		{
			COMPAT_DROP_TEMPORARY_SLOTS();
			break;
		}
}

/* May tasks run one after the other in one transaction of this session? */
bool
cleanup_allows_members(void)
{
	session.leaves = false;
	return !may_have_connections();
}

/* Reset what can be reset within a transaction and outside. */
static void
reset_anywhere(void)
{
	PortalHashTableDeleteAll();
	ResetSequenceCaches();
	cleanup_replication_slots();
	(void) DirectFunctionCall1(setseed, Float8GetDatum(pg_prng_double(&pg_global_prng_state)));
}

/*
 * After a task that is a member of a batch, in its subtransaction, when its settings were undone:
 * reset what it has left, except for the effects that it may have on others after its commit.
 * Returns false if that is not possible before the transaction has ended: the batch must end.  So
 * it is with advisory locks: who gets one next must see what the task has done under it.
 */
bool
cleanup_member(Oid role)
{
	Assert(IsTransactionState());
	reset_anywhere();
	AtEOXact_LargeObject(true);
	return !session.leaves && !session.load && cleanup_allows_commit() && !holds_advisory_lock() &&
		   EstimateLibraryStateSpace() == session.libraries && GetUserId() == role &&
		   GetSessionUserId() == role;
}

/*
 * Reset the session, whose user is "role", to its state before the task.  Returns false if that is
 * not possible: the process must exit.
 */
bool
cleanup_session(Oid role)
{
	Assert(!IsTransactionState());
	reset_anywhere();
	DropAllPreparedStatements();
	ResetAllOptions();
	LockReleaseAll(USER_LOCKMETHOD, true);
	if (GetUserId() != role || GetSessionUserId() != role)
	{
		StartTransactionCommand();
		SetPGVariable("session_authorization", NIL, false);
		SetPGVariable("role", NIL, false);
		CommitTransactionCommand();
	}
	return !session.load && cleanup_allows_commit() && !has_loaded_state() && close_connections() &&
		   (++session.tasks % MEASURE_EVERY != 0 ||
			MemoryContextMemAllocated(TopMemoryContext, true) <= MEMORY_MAX);
}
