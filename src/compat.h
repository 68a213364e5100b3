/*
 * compat.h
 *		Differences between the supported server versions (15 to 19).
 *
 * No other file tests PG_VERSION_NUM.
 */
#ifndef PG_TASK_COMPAT_H
#define PG_TASK_COMPAT_H

#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "catalog/pg_namespace.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/timeout.h"

#if PG_VERSION_NUM < 150000
#error "pg_task needs PostgreSQL 15 or later"
#endif

/* What takes values of variable length apart was in postgres.h before 16. */
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

/* A function that SQL calls.  Before 16 the server's macro does not export it. */
#define COMPAT_FUNCTION(name)                 \
	PGDLLEXPORT Datum name(PG_FUNCTION_ARGS); \
	PG_FUNCTION_INFO_V1(name)

/*
 * A function that walks over a tree of nodes.  Before 16 it was declared without a list of
 * arguments, which C23, the default of newer compilers, reads as one without arguments.
 */
#if PG_VERSION_NUM >= 160000
#define COMPAT_WALKER(function) (function)
#else
#define COMPAT_WALKER(function) ((bool (*)())(void (*)(void))(function))
#endif

/*
 * Has no row a NULL in this column?  From 18 on a constraint may be NOT VALID: it holds for rows
 * that are written from now on.
 */
#if PG_VERSION_NUM >= 180000
#define COMPAT_NOT_NULL(desc, i) \
	(TupleDescCompactAttr(desc, i)->attnullability == ATTNULLABLE_VALID)
#else
#define COMPAT_NOT_NULL(desc, i) (TupleDescAttr(desc, i)->attnotnull)
#endif

/* The number of this process in ProcGlobal->allProcs. */
#if PG_VERSION_NUM >= 170000
#define COMPAT_MY_PROC MyProcNumber
#else
#define COMPAT_MY_PROC (MyProc->pgprocno)
#endif

/* Memory for the extra data of a check hook; NULL if there is none left. */
#if PG_VERSION_NUM >= 160000
#define compat_guc_malloc(size) guc_malloc(LOG, size)
#else
#define compat_guc_malloc(size) malloc(size)
#endif

/* What the third argument of post_parse_analyze_hook points to. */
#if PG_VERSION_NUM >= 190000
#define COMPAT_JUMBLE_STATE const JumbleState
#else
#define COMPAT_JUMBLE_STATE JumbleState
#endif

/* What table_tuple_update says of indexes; 0: they need no new entry. */
#if PG_VERSION_NUM >= 160000
#define COMPAT_UPDATE_INDEXES TU_UpdateIndexes
#else
#define COMPAT_UPDATE_INDEXES bool
#endif

/* table_tuple_update, which waits for locks. */
#if PG_VERSION_NUM >= 190000
#define COMPAT_TUPLE_UPDATE(rel, tid, slot, cid, snapshot, failure, mode, indexes)             \
	table_tuple_update(rel, tid, slot, cid, 0, snapshot, InvalidSnapshot, true, failure, mode, \
					   indexes)
#else
#define COMPAT_TUPLE_UPDATE(rel, tid, slot, cid, snapshot, failure, mode, indexes) \
	table_tuple_update(rel, tid, slot, cid, snapshot, InvalidSnapshot, true, failure, mode, indexes)
#endif

/* table_tuple_delete, which does not wait. */
#if PG_VERSION_NUM >= 190000
#define COMPAT_TUPLE_DELETE(rel, tid, cid, snapshot, failure) \
	table_tuple_delete(rel, tid, cid, 0, snapshot, InvalidSnapshot, false, failure)
#else
#define COMPAT_TUPLE_DELETE(rel, tid, cid, snapshot, failure) \
	table_tuple_delete(rel, tid, cid, snapshot, InvalidSnapshot, false, failure, false)
#endif

/* index_beginscan, without ORDER BY. */
#if PG_VERSION_NUM >= 190000
#define COMPAT_INDEX_BEGINSCAN(rel, index, snapshot, nkeys) \
	index_beginscan(rel, index, snapshot, NULL, nkeys, 0, SO_NONE)
#elif PG_VERSION_NUM >= 180000
#define COMPAT_INDEX_BEGINSCAN(rel, index, snapshot, nkeys) \
	index_beginscan(rel, index, snapshot, NULL, nkeys, 0)
#else
#define COMPAT_INDEX_BEGINSCAN(rel, index, snapshot, nkeys) \
	index_beginscan(rel, index, snapshot, nkeys, 0)
#endif

/* Arguments of a signal handler, to pass them to another one. */
#if PG_VERSION_NUM >= 190000
#define COMPAT_SIGNAL_PASS postgres_signal_arg, pg_siginfo
#else
#define COMPAT_SIGNAL_PASS postgres_signal_arg
#endif

/* For a signal handler that does not use its arguments. */
#if PG_VERSION_NUM >= 190000
#define COMPAT_SIGNAL_UNUSED ((void) postgres_signal_arg, (void) pg_siginfo)
#else
#define COMPAT_SIGNAL_UNUSED ((void) postgres_signal_arg)
#endif

/* The number of the current transaction in this process. */
#if PG_VERSION_NUM >= 170000
#define COMPAT_LOCAL_XID (MyProc->vxid.lxid)
#else
#define COMPAT_LOCAL_XID (MyProc->lxid)
#endif

/* PortalRun has no argument "run_once" from 18 on; before, it must be true. */
#if PG_VERSION_NUM >= 180000
#define COMPAT_PORTAL_RUN(portal, count, top, dest, alt, qc) \
	PortalRun(portal, count, top, dest, alt, qc)
#else
#define COMPAT_PORTAL_RUN(portal, count, top, dest, alt, qc) \
	PortalRun(portal, count, top, true, dest, alt, qc)
#endif

/* The replication origin of the session; 0: none. */
#if PG_VERSION_NUM >= 190000
#define COMPAT_SESSION_ORIGIN (replorigin_xact_state.origin)
#else
#define COMPAT_SESSION_ORIGIN replorigin_session_origin
#endif

/* Does this process use this replication slot, or own it as a temporary one? */
#if PG_VERSION_NUM >= 190000
#define COMPAT_IS_MY_REPLICATION_SLOT(slot) ((slot).active_proc == MyProcNumber)
#else
#define COMPAT_IS_MY_REPLICATION_SLOT(slot) ((slot).active_pid == MyProcPid)
#endif

/* Drop the temporary replication slots of this process. */
#if PG_VERSION_NUM >= 170000
#define COMPAT_DROP_TEMPORARY_SLOTS() ReplicationSlotCleanup(false)
#else
#define COMPAT_DROP_TEMPORARY_SLOTS() ReplicationSlotCleanup()
#endif

/*
 * Forget the query identifier, and from 18 on the plan identifier, of this process's last
 * statement.
 */
#if PG_VERSION_NUM >= 180000
#define COMPAT_FORGET_QUERY_ID() (pgstat_report_query_id(0, true), pgstat_report_plan_id(0, true))
#else
#define COMPAT_FORGET_QUERY_ID() pgstat_report_query_id(0, true)
#endif

/* May a background worker run as a role without LOGIN? */
#if PG_VERSION_NUM >= 170000
#define COMPAT_NOLOGIN_WORKER true
#define COMPAT_WORKER_FLAGS BGWORKER_BYPASS_ROLELOGINCHECK
#else
#define COMPAT_NOLOGIN_WORKER false
#define COMPAT_WORKER_FLAGS 0
#endif

/*
 * May "member" SET ROLE to "role"?  From 16 on there is a separate privilege for it.  Does a role
 * own a database, may it connect to it, and create something in a schema?
 */
#if PG_VERSION_NUM >= 160000
#define compat_may_become(member, role) member_can_set_role(member, role)
#define compat_owns_database(database, role) object_ownercheck(DatabaseRelationId, database, role)
#define compat_may_connect(database, role) \
	(object_aclcheck(DatabaseRelationId, database, role, ACL_CONNECT) == ACLCHECK_OK)
#define compat_may_create_in(schema, role) \
	(object_aclcheck(NamespaceRelationId, schema, role, ACL_CREATE) == ACLCHECK_OK)
#else
#define compat_may_become(member, role) is_member_of_role(member, role)
#define compat_owns_database(database, role) pg_database_ownercheck(database, role)
#define compat_may_connect(database, role) \
	(pg_database_aclcheck(database, role, ACL_CONNECT) == ACLCHECK_OK)
#define compat_may_create_in(schema, role) \
	(pg_namespace_aclcheck(schema, role, ACL_CREATE) == ACLCHECK_OK)
#endif

/* Does this process hold a lock on the relation, in whichever mode?  For assertions. */
static inline bool
compat_relation_locked(Oid relid)
{
	LOCKTAG tag;
	LOCKMODE mode;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
#if PG_VERSION_NUM >= 170000
	mode = AccessShareLock;
	return LockHeldByMe(&tag, mode, true);
#else
	for (mode = AccessShareLock; mode <= AccessExclusiveLock; mode++)
		if (LockHeldByMe(&tag, mode))
			return true;
	return false;
#endif
}

/*
 * The locks that a process holds in a partition of the shared table.  The caller of the function
 * holds the lock of the partition.
 */
#if PG_VERSION_NUM >= 160000
#define COMPAT_HAS_NO_LOCKS(proc, partition) dlist_is_empty(&(proc)->myProcLocks[partition])
#else
#define COMPAT_HAS_NO_LOCKS(proc, partition) SHMQueueEmpty(&(proc)->myProcLocks[partition])
#endif

static inline bool
compat_holds_lock_of(PGPROC *proc, int partition, LOCKMETHODID method)
{
#if PG_VERSION_NUM >= 160000
	dlist_iter next;

	dlist_foreach(next, &proc->myProcLocks[partition])
		if (dlist_container(PROCLOCK, procLink, next.cur)->tag.myLock->tag.locktag_lockmethodid ==
			method)
			return true;
#else
	SHM_QUEUE *locks = &proc->myProcLocks[partition];
	size_t link = offsetof(PROCLOCK, procLink);
	PROCLOCK *next;

	for (next = (PROCLOCK *) SHMQueueNext(locks, locks, link); next;
		 next = (PROCLOCK *) SHMQueueNext(locks, &next->procLink, link))
		if (next->tag.myLock->tag.locktag_lockmethodid == method)
			return true;
#endif
	return false;
}

/* Is there a limit of time for transactions?  transaction_timeout exists from 17 on. */
#if PG_VERSION_NUM >= 170000
#define COMPAT_LIMITS_TRANSACTIONS (TransactionTimeout > 0)
#else
#define COMPAT_LIMITS_TRANSACTIONS false
#endif

/* Disable the timeout of the current transaction.  transaction_timeout exists from 17 on. */
static inline void
compat_stop_transaction_timeout(void)
{
#if PG_VERSION_NUM >= 170000
	if (TransactionTimeout > 0)
		disable_timeout(TRANSACTION_TIMEOUT, false);
	TransactionTimeoutPending = false;
#endif
}

/* Custom wait events have names from 17 on. */
#if PG_VERSION_NUM >= 170000
#include "utils/wait_event.h"
#define COMPAT_WAIT_EVENT(name) WaitEventExtensionNew(name)
#else
#include "pgstat.h"
#define COMPAT_WAIT_EVENT(name) PG_WAIT_EXTENSION
#endif

#endif /* PG_TASK_COMPAT_H */
