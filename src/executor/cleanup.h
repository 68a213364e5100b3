/*
 * cleanup.h
 *		Resets the session of an executor between tasks.
 */
#ifndef PG_TASK_CLEANUP_H
#define PG_TASK_CLEANUP_H

#include "postgres.h"

extern void cleanup_define(void);
extern void cleanup_note_command(const Node *command); /* for pg_task.c */
extern void cleanup_replication_slots(void);
extern bool cleanup_session(Oid role);
extern bool cleanup_allows_members(void);
extern bool cleanup_member(Oid role);
extern bool cleanup_allows_commit(void);

#endif /* PG_TASK_CLEANUP_H */
