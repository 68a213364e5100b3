/*
 * statistics_file.c
 *		Keeps the figures of pg_stat_task over a restart of the server.
 *
 * The postmaster writes them into a file when it has shut the server down in order, and reads and
 * removes the file when it starts.  So after a crash there is none, as of the server's own
 * statistics, and the figures begin anew.  A file that is not as it should be is ignored.
 */
#include "postgres.h"

#include <unistd.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"
#include "utils/timestamp.h"

#include "settings.h"
#include "shared/shared.h"
#include "shared/statistics.h"

#define STAT_FILE PGSTAT_STAT_PERMANENT_DIRECTORY "/pg_task.stat"
#define STAT_FILE_MAGIC 0x50475432

/* What precedes the records. */
typedef struct StatHeader
{
	uint32 magic;
	uint32 record_size;
	int32 count;
	pg_crc32c crc; /* of the records */
	int64 evicted;
	TimestampTz reset;
} StatHeader;

/* Read and check all records; they are added only if all are whole.  NULL if they are not. */
static StatRecord *
read_records(FILE *file, StatHeader *header)
{
	StatRecord *records;
	pg_crc32c crc;
	int i;

	if (fread(header, sizeof(StatHeader), 1, file) != 1 || header->magic != STAT_FILE_MAGIC ||
		header->record_size != sizeof(StatRecord) || header->count < 0 ||
		header->count > SETTINGS_STAT_MAX)
		return NULL;
	records = palloc_array(StatRecord, header->count + 1);
	if (fread(records, sizeof(StatRecord), header->count, file) != (size_t) header->count)
		return NULL;
	INIT_CRC32C(crc);
	COMP_CRC32C(crc, records, header->count * sizeof(StatRecord));
	FIN_CRC32C(crc);
	if (!EQ_CRC32C(crc, header->crc))
		return NULL;
	for (i = 0; i < header->count; i++)
		records[i].key.queue[TASK_QUEUE_MAX] = '\0';
	return records;
}

/* Fill the table, which is empty, from the file, and remove that. */
void
statistics_load(void)
{
	FILE *file = AllocateFile(STAT_FILE, PG_BINARY_R);
	StatHeader header;
	StatRecord *records;
	int i;

	if (file == NULL)
		return;
	records = read_records(file, &header);
	FreeFile(file);
	/* durably, or the figures would be there again after a power failure */
	(void) durable_unlink(STAT_FILE, LOG);
	if (records == NULL)
	{
		ereport(LOG, (errcode(ERRCODE_DATA_CORRUPTED),
					  errmsg("ignoring invalid data in file \"%s\"", STAT_FILE)));
		return;
	}
	for (i = 0; i < header.count && statistics_insert(&records[i]); i++)
		;
	Statistics->evicted = header.evicted;
	Statistics->reset = header.reset;
	pfree(records);
}

static bool
write_records(const char *name)
{
	StatHeader header = {.magic = STAT_FILE_MAGIC, .record_size = sizeof(StatRecord)};
	StatRecord *records = statistics_read(&header.count);
	FILE *file = AllocateFile(name, PG_BINARY_W);
	bool written;

	header.evicted = Statistics->evicted;
	header.reset = Statistics->reset;
	INIT_CRC32C(header.crc);
	COMP_CRC32C(header.crc, records, header.count * sizeof(StatRecord));
	FIN_CRC32C(header.crc);
	if (file == NULL)
		return false;
	written = fwrite(&header, sizeof(header), 1, file) == 1 &&
			  fwrite(records, sizeof(StatRecord), header.count, file) == (size_t) header.count;
	pfree(records);
	return FreeFile(file) == 0 && written;
}

/* Write the file.  No other process is left. */
void
statistics_save(void)
{
	static const char temporary[] = STAT_FILE ".tmp";

	if (write_records(temporary))
	{
		(void) durable_rename(temporary, STAT_FILE, LOG);
		return;
	}
	ereport(LOG, (errcode_for_file_access(), errmsg("could not write file \"%s\": %m", temporary)));
	(void) unlink(temporary);
}
