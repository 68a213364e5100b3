/*
 * crash.h
 *		Which tasks, and which schedulers, may have caused a crash of the server?
 */
#ifndef PG_TASK_CRASH_H
#define PG_TASK_CRASH_H

#include "postgres.h"

#include "shared/shared.h"
#include "shared/task.h"

extern void crash_note_parallel_worker(void); /* for pg_task.c */
extern Size crash_size(void);
extern void crash_create(void *memory);
extern void crash_watch(bool *quit);
extern int crash_holds(Oid database);
extern void crash_release(Oid database);
extern void crash_report_used(void);
extern TimestampTz crash_claim_time(TimestampTz now);
extern bool crash_blames(Oid database, TaskRun run);

#endif /* PG_TASK_CRASH_H */
