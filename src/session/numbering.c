/*
 * numbering.c
 *		Which ids the sequence of the task table has given.
 *
 * The value of the sequence is read each time, because nothing reports a restart of a sequence.
 * Only the oid of the sequence is cached.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/dependency.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_sequence.h"
#include "commands/sequence.h"
#include "common/int.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "utils/fmgrprotos.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "session/numbering.h"

/*
 * The sequence that numbers the rows of a table.  Static, because it is kept from one statement of
 * the session to the next.
 */
static struct
{
	bool watching; /* forget_sequence is registered */
	Oid relid;	   /* InvalidOid: forget_sequence was called */
	bool known;	   /* "sequence" is that of "relid" */
	Oid sequence;
} numbering;

/* Relcache callback: the table may have another sequence now. */
static void
forget_sequence(Datum arg pg_attribute_unused(), Oid relid)
{
	if (relid == numbering.relid || relid == InvalidOid)
		numbering.relid = InvalidOid;
}

/* Return the sequence that the column "id" owns, as identity or serial column, or InvalidOid. */
static Oid
find_sequence(Oid relid)
{
	AttrNumber number = get_attnum(relid, "id");
	List *sequences = getOwnedSequences(relid);
	ListCell *cell;

	foreach(cell, sequences)
	{
		Oid table;
		int32 column;

		if ((sequenceIsOwned(lfirst_oid(cell), DEPENDENCY_INTERNAL, &table, &column) ||
			 sequenceIsOwned(lfirst_oid(cell), DEPENDENCY_AUTO, &table, &column)) &&
			column == number)
			return lfirst_oid(cell);
	}
	return InvalidOid;
}

/*
 * The same, from the cache if it is there.  Nothing is cached after an error, or if the table has
 * changed while the catalogs were read.
 */
static Oid
find_sequence_cached(Oid relid)
{
	if (!numbering.watching)
		CacheRegisterRelcacheCallback(forget_sequence, (Datum) 0);
	numbering.watching = true;
	if (numbering.relid != relid || !numbering.known)
	{
		numbering.known = false;
		numbering.relid = relid;
		numbering.sequence = find_sequence(relid);
		numbering.known = numbering.relid == relid;
	}
	return numbering.sequence;
}

/*
 * The last value of a sequence, whatever the rights of the current user.  Returns false if it has
 * given none yet.  After an error, the end of the transaction restores the user.
 */
static bool
read_last_value(Oid sequence, int64 *value)
{
	LOCAL_FCINFO(call, 1);
	Oid user;
	int context;

	InitFunctionCallInfoData(*call, NULL, 1, InvalidOid, NULL, NULL);
	call->args[0].value = ObjectIdGetDatum(sequence);
	call->args[0].isnull = false;
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, context | SECURITY_LOCAL_USERID_CHANGE);
	*value = DatumGetInt64(pg_sequence_last_value(call));
	SetUserIdAndSecContext(user, context);
	return !call->isnull;
}

/*
 * Is this an id that the sequence of the table has not given yet?  False for a table without a
 * sequence of its own.
 */
bool
numbering_is_ahead(Oid relid, int64 id)
{
	Oid sequence = find_sequence_cached(relid);
	HeapTuple tuple;
	bool backwards;
	int64 last;

	if (!OidIsValid(sequence))
		return false;
	tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(sequence));
	if (!HeapTupleIsValid(tuple))
		return false;
	backwards = ((Form_pg_sequence) GETSTRUCT(tuple))->seqincrement < 0;
	ReleaseSysCache(tuple);
	if (!read_last_value(sequence, &last))
		return true;
	return backwards ? id < last : id > last;
}

/*
 * Set *low and *high to the ids at most so far from the last one that the sequence of the table has
 * given: before it and, because ids may count down, after it.  Returns false if there is none.
 */
bool
numbering_recent(Oid relid, int64 count, int64 *low, int64 *high)
{
	Oid sequence = find_sequence_cached(relid);
	int64 last = 0;
	bool found = OidIsValid(sequence) && read_last_value(sequence, &last);

	if (pg_sub_s64_overflow(last, count, low))
		*low = PG_INT64_MIN;
	if (pg_add_s64_overflow(last, count, high))
		*high = PG_INT64_MAX;
	return found;
}
