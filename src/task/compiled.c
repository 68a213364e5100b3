/*
 * compiled.c
 *		Separates functions compiled for tasks from functions compiled for the table's owner.
 *
 * A procedural language compiles a function at its first call, under the search_path and the other
 * settings of that moment, and caches the result for the life of the process.  In an executor the
 * first call may come from a task.  The write-back, which runs as the owner of the table, must not
 * use what the task compiled.
 *
 * Languages reuse a compiled function as long as the row in pg_proc is the same: they compare its
 * xmin and its ctid.  While the executor acts as the owner, the row in the system cache of this
 * process has a different xmin.  So a function that a task has compiled is compiled again for the
 * owner, and the other way round.  The row on disk is never changed.
 *
 * Some functions are cached by the server itself, for longer than a statement: index expressions
 * with the functions inlined into them, support functions of operator classes, casts, constraints
 * of domains.  Such a function is not inlined in an executor, and is always called through the
 * fmgr hook.
 *
 * This file knows neither tasks nor tables.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/indexing.h"
#include "catalog/pg_amproc.h"
#include "catalog/pg_cast.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_language.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "compat.h"
#include "task/compiled.h"

/*
 * Flips the highest bit of an xmin.  No two versions of a pg_proc row at the same ctid have xmins
 * that are 2^31 apart, so a flipped xmin never identifies another version.
 */
#define XMIN_FLIP ((TransactionId) 0x80000000)

/* Does the server cache this function? */
typedef struct Kept
{
	Oid function; /* key */
	bool kept;
} Kept;

/* A function whose row in the system cache has a changed xmin now. */
typedef struct Mark
{
	Oid function;		/* key */
	TransactionId xmin; /* the changed one */
	uint32 hash;		/* of the key in the system cache */
} Mark;

/*
 * What this process knows of functions.  It lives as long as the process, as what languages compile
 * does.  Hooks and callbacks take no argument of ours.
 */
static struct
{
	bool acting; /* this process acts as the owner of the table */
	Datum era;	 /* changes whenever "acting" changes; never 0 */
	HTAB *kept;	 /* of Kept; NULL: none yet */
	bool stale;	 /* a catalog that "kept" was computed from has changed */
	HTAB *marks; /* of Mark, while this process acts as the owner; NULL: none */
	needs_fmgr_hook_type next_needs_fmgr;
	fmgr_hook_type next_fmgr;
} compiled = {.era = 1};

static HTAB *
create_oid_hash(const char *name, Size entry_size)
{
	HASHCTL control = {.keysize = sizeof(Oid), .entrysize = entry_size, .hcxt = TopMemoryContext};

	return hash_create(name, 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* Does a constraint belong to a domain, not to a table? */
static bool
is_domain_constraint(Oid constraint)
{
	HeapTuple tuple = SearchSysCache1(CONSTROID, ObjectIdGetDatum(constraint));
	bool of_domain = false;

	if (HeapTupleIsValid(tuple))
	{
		of_domain = OidIsValid(((Form_pg_constraint) GETSTRUCT(tuple))->contypid);
		ReleaseSysCache(tuple);
	}
	return of_domain;
}

/* Does the server cache, with this object, what it derives from the object's functions? */
static bool
keeps_functions(Form_pg_depend dependency)
{
	switch (dependency->classid)
	{
		case RelationRelationId: /* indexes and partition keys */
		case OperatorRelationId:
		case AccessMethodProcedureRelationId:
		case CastRelationId:
		case TypeRelationId:
			return true;
		case ConstraintRelationId:
			return is_domain_constraint(dependency->objid);
		default:
			return false;
	}
}

/* Does an object of those that keep functions depend on this function? */
static bool
is_depended_on(Oid function)
{
	Relation rel = table_open(DependRelationId, AccessShareLock);
	SysScanDesc scan;
	ScanKeyData keys[2];
	HeapTuple tuple;
	bool found = false;

	ScanKeyInit(&keys[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(ProcedureRelationId));
	ScanKeyInit(&keys[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(function));
	scan = systable_beginscan(rel, DependReferenceIndexId, true, NULL, 2, keys);
	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
		found = keeps_functions((Form_pg_depend) GETSTRUCT(tuple));
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

/* Does the server cache what it derives from this function for longer than a statement? */
static bool
is_kept(Oid function)
{
	Kept *known;
	bool kept;

	if (compiled.stale && compiled.kept)
	{
		hash_destroy(compiled.kept);
		compiled.kept = NULL;
	}
	compiled.stale = false;
	if (compiled.kept == NULL)
		compiled.kept = create_oid_hash("pg_task kept functions", sizeof(Kept));
	known = hash_search(compiled.kept, &function, HASH_FIND, NULL);
	if (known)
		return known->kept;
	kept = is_depended_on(function);
	/* an invalidation may have arrived while the catalogs were read */
	if (!compiled.stale)
	{
		known = hash_search(compiled.kept, &function, HASH_ENTER, NULL);
		known->kept = kept;
	}
	return kept;
}

/* The language of a function; InvalidOid if the function was dropped. */
static Oid
language_of(Oid function)
{
	HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Oid language = InvalidOid;

	if (HeapTupleIsValid(tuple))
	{
		language = ((Form_pg_proc) GETSTRUCT(tuple))->prolang;
		ReleaseSysCache(tuple);
	}
	return language;
}

/* Does the language compile functions, and keep the result for the life of the process? */
static bool
is_compiled(Oid language)
{
	return OidIsValid(language) && language != INTERNALlanguageId && language != ClanguageId;
}

/* Must this function be called through the hook?  Then it is not inlined, either. */
static bool
function_needs_hook(Oid function)
{
	Oid language;

	if (compiled.next_needs_fmgr && compiled.next_needs_fmgr(function))
		return true;
	/* built-in SQL functions are not stored as text */
	if (function < FirstNormalObjectId)
		return false;
	language = language_of(function);
	if (!is_compiled(language))
		return false;
	if (compiled.acting && (language != SQLlanguageId || COMPAT_SQL_IS_KEPT))
		return true;
	return is_kept(function);
}

/* Change the xmin of the function's row in the system cache, until compiled_end. */
static void
mark_function(Oid function)
{
	HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Mark *given;
	bool found;

	if (!HeapTupleIsValid(tuple))
		return;
	if (is_compiled(((Form_pg_proc) GETSTRUCT(tuple))->prolang))
	{
		TransactionId xmin = HeapTupleHeaderGetRawXmin(tuple->t_data);

		if (compiled.marks == NULL)
			compiled.marks = create_oid_hash("pg_task marks", sizeof(Mark));
		given = hash_search(compiled.marks, &function, HASH_ENTER, &found);
		if (!found)
			given->hash = GetSysCacheHashValue1(PROCOID, ObjectIdGetDatum(function));
		if (!found || given->xmin != xmin)
		{
			given->xmin = xmin ^ XMIN_FLIP;
			HeapTupleHeaderSetXmin(tuple->t_data, given->xmin);
		}
	}
	ReleaseSysCache(tuple);
}

/*
 * fmgr hook: called before each call of such a function, and of any function that has a SET clause
 * or is SECURITY DEFINER.  "state" belongs to the caller and is zero at first.
 */
static void
prepare_call(FmgrHookEventType event, FmgrInfo *function, Datum *state)
{
	if (event == FHET_START && compiled.acting)
	{
		mark_function(function->fn_oid);
		/*
		 * otherwise the function statistics accept invalidation messages at the first counted
		 * call, and the changed cache entry would be lost
		 */
		function->fn_stats = TRACK_FUNC_ALL;
	}
	/*
	 * up to version 17 a function in language SQL is cached in fn_extra, for the whole transaction
	 */
	if (event == FHET_START && *state != compiled.era)
	{
		if (*state != 0 && language_of(function->fn_oid) == SQLlanguageId)
			function->fn_extra = NULL;
		*state = compiled.era;
	}
}

/* If another fmgr hook was installed before, each hook has its own state. */
typedef struct CallState
{
	Datum own;
	Datum next;
} CallState;

/* The hook if another one was installed before: call that one as well. */
static void
prepare_call_and_forward(FmgrHookEventType event, FmgrInfo *function, Datum *state)
{
	CallState *states = (CallState *) DatumGetPointer(*state);

	if (states == NULL)
	{
		states = MemoryContextAllocZero(function->fn_mcxt, sizeof(CallState));
		*state = PointerGetDatum(states);
	}
	prepare_call(event, function, &states->own);
	compiled.next_fmgr(event, function, &states->next);
}

/* This process begins to act as the owner of the table. */
void
compiled_begin(void)
{
	Assert(!compiled.acting && compiled.marks == NULL);
	compiled.acting = true;
	compiled.era++;
}

/* Undo mark_function. */
static void
unmark_function(Mark *given)
{
	HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(given->function));

	if (!HeapTupleIsValid(tuple))
		return;
	if (HeapTupleHeaderGetRawXmin(tuple->t_data) == given->xmin)
		HeapTupleHeaderSetXmin(tuple->t_data, given->xmin ^ XMIN_FLIP);
	ReleaseSysCache(tuple);
}

/* This process no longer acts as the owner of the table. */
void
compiled_end(void)
{
	HASH_SEQ_STATUS status;
	Mark *given;

	if (!compiled.acting)
		return;
	if (compiled.marks)
	{
		hash_seq_init(&status, compiled.marks);
		while ((given = hash_seq_search(&status)) != NULL)
			unmark_function(given);
		hash_destroy(compiled.marks);
		compiled.marks = NULL;
	}
	compiled.acting = false;
	compiled.era++;
}

/*
 * The same after an error or a commit, when catalogs cannot be read: invalidate the cached rows.
 */
void
compiled_abandon(void)
{
	HASH_SEQ_STATUS status;
	Mark *given;

	if (compiled.marks)
	{
		hash_seq_init(&status, compiled.marks);
		while ((given = hash_seq_search(&status)) != NULL)
			SysCacheInvalidate(PROCOID, given->hash);
		hash_destroy(compiled.marks);
		compiled.marks = NULL;
	}
	compiled.acting = false;
	compiled.era++;
}

/* A relation has changed, or a row of one of the catalogs that keeps_functions depends on. */
void
compiled_invalidated(void)
{
	compiled.stale = true;
}

/* Called once per process, before it connects. */
void
compiled_define(void)
{
	Assert(!OidIsValid(MyDatabaseId));
	Assert(needs_fmgr_hook != function_needs_hook);
	compiled.next_needs_fmgr = needs_fmgr_hook;
	needs_fmgr_hook = function_needs_hook;
	compiled.next_fmgr = fmgr_hook;
	fmgr_hook = compiled.next_fmgr ? prepare_call_and_forward : prepare_call;
}
