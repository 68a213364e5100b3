/*
 * restore.c
 *		Which restore of a backup this server is: the time at which it was first started from it.
 *
 * The postmaster sees that before it recovers: a backup has a file "backup_label" and, for recovery
 * to a point in time, "recovery.signal".  A file keeps the number, because both files are gone when
 * recovery has ended.
 *
 * A standby is no restore: it goes on as the same server.  It forgets the number that it may have,
 * from the backup that it was made of or from its own time as a primary: its primary is another
 * server, and sets marks with another number.  But one with a recovery target is a restore: it is
 * not to take over from its primary, but to leave it at that point.  pg_createsubscriber starts
 * one, which is then a primary beside its own for some seconds.
 *
 * A copy of a data directory that was made without the server's knowledge (a snapshot) is not seen.
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "pgstat.h"
#include "storage/fd.h"
#include "utils/timestamp.h"

#include "shared/restore.h"

#define RESTORE_FILE PGSTAT_STAT_PERMANENT_DIRECTORY "/pg_task.restored"

static bool
file_exists(const char *name)
{
	return access(name, F_OK) == 0;
}

/*
 * Does this server start as a standby, or to recover from an archive?  Only the postmaster can
 * tell, before it recovers.
 */
bool
restore_is_recovery(void)
{
	return file_exists(STANDBY_SIGNAL_FILE) || file_exists(RECOVERY_SIGNAL_FILE);
}

/* Does it start as a standby that may take over from its primary? */
static bool
is_successor(void)
{
	return file_exists(STANDBY_SIGNAL_FILE) && recoveryTarget == RECOVERY_TARGET_UNSET;
}

/* Is this the first start from a backup, or one to recover to some point? */
static bool
is_restore(void)
{
	return file_exists(BACKUP_LABEL_FILE) || restore_is_recovery();
}

/* Read the number of the last restore; 0: there was none. */
static uint64
read_number(void)
{
	FILE *file = AllocateFile(RESTORE_FILE, "r");
	uint64 number = 0;

	if (file == NULL)
		return 0;
	if (fscanf(file, UINT64_FORMAT, &number) != 1)
		number = 0;
	FreeFile(file);
	return number;
}

static bool
write_number(const char *name, uint64 number)
{
	FILE *file = AllocateFile(name, "w");
	bool written;

	if (file == NULL)
		return false;
	written = fprintf(file, UINT64_FORMAT "\n", number) > 0;
	return FreeFile(file) == 0 && written;
}

/*
 * Return the number of this restore; 0 for a server that never was restored, or was a standby
 * without a recovery target since. Called at the start and after each crash, by the postmaster (or
 * a server in single-user mode) before recovery.
 */
uint64
restore_number(void)
{
	static const char temporary[] = RESTORE_FILE ".tmp";
	uint64 number;

	if (is_successor())
	{
		if (file_exists(RESTORE_FILE))
			(void) durable_unlink(RESTORE_FILE, LOG);
		return 0;
	}
	if (!is_restore())
		return read_number();
	number = (uint64) GetCurrentTimestamp();
	if (write_number(temporary, number))
		(void) durable_rename(temporary, RESTORE_FILE, LOG);
	else
		ereport(LOG,
				(errcode_for_file_access(), errmsg("could not write file \"%s\": %m", temporary)));
	return number;
}
