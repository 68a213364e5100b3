/*
 * work.h
 *		The transactions of the scheduler, as the owner of the task table.
 */
#ifndef PG_TASK_WORK_H
#define PG_TASK_WORK_H

#include "postgres.h"

/* Longest transaction that scans the table (ms); see work_limit. */
#define WORK_SCAN_MS 60000

extern void work_define(void);
extern void work_begin(const char *activity);
extern void work_begin_writing(const char *activity);
extern bool work_begin_writing_now(const char *activity);
extern void work_limit(int limit_ms);
extern void work_end_limit(void);
extern void work_set_lazy(bool lazy);
extern void work_end(void);
extern void work_abandon(void);
extern void work_forget_table(void);

#endif /* PG_TASK_WORK_H */
