/*
 * serving.c
 *		Since when this server runs tasks: since it was started, or, if it was started as a standby
 *		or to recover from an archive, since the end of that recovery.
 *
 * What was due before that, and has not begun, was missed by this server.
 */
#include "postgres.h"

#include "access/xlog_internal.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "shared/restore.h"
#include "shared/serving.h"
#include "shared/shared.h"

/* The postmaster's copy, which outlives the shared memory: a crash does not change the time. */
static struct
{
	bool looked;
	bool recovers; /* when it was started */
	TimestampTz since;
} kept;

/* Called at the start and after each crash, by the postmaster before recovery. */
void
serving_init(void)
{
	if (!kept.looked)
		kept.recovers = restore_is_recovery();
	kept.looked = true;
	Shared->recovers = kept.recovers;
	pg_atomic_init_u64(&Shared->serving_since, (uint64) kept.since);
}

/* The postmaster is about to release the shared memory. */
void
serving_keep(void)
{
	kept.since = (TimestampTz) pg_atomic_read_u64(&Shared->serving_since);
}

/*
 * The second in which recovery has ended: then the server was ready to write WAL.  The time is
 * later if a whole segment has been written since.  That of this call would not do, because a
 * session may have planned a task before it.
 */
static TimestampTz
end_of_recovery(void)
{
	XLogRecPtr lsn;

	return time_t_to_timestamptz(GetLastSegSwitchData(&lsn));
}

/* The supervisor calls this before there are schedulers.  Recovery has ended. */
void
serving_begin(void)
{
	TimestampTz since = Shared->recovers ? end_of_recovery() : PgStartTime;

	if (serving_since() == 0)
		pg_atomic_write_u64(&Shared->serving_since, (uint64) since);
}

/* Return the time; 0 before there was a supervisor. */
TimestampTz
serving_since(void)
{
	return (TimestampTz) pg_atomic_read_u64(&Shared->serving_since);
}
