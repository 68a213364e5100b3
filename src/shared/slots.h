/*
 * slots.h
 *		The life of a slot: from its reservation to its release.
 */
#ifndef PG_TASK_SLOTS_H
#define PG_TASK_SLOTS_H

#include "postgres.h"

#include "shared/shared.h"

/*
 * Does a process run in this slot, or is one being started for it?  Inline, because the postmaster
 * asks as well (crash.c).
 */
static inline bool
executor_slot_has_process(const SharedExecutor *slot)
{
	return slot->state != EXECUTOR_FREE && slot->state != EXECUTOR_GONE;
}

/* Schedulers. */
extern SharedScheduler *scheduler_slot_reserve(Oid database, Oid user);
extern SharedScheduler *scheduler_slot_attach(int slot, uint32 generation);
extern void scheduler_slot_leave(SharedScheduler *slot);
extern void scheduler_slot_release(SharedScheduler *me);
extern void scheduler_slot_withdraw(SharedScheduler *slot, uint32 generation);
extern SharedScheduler *scheduler_slot_find(Oid database);

extern void slots_notify_vacated(void);

/*
 * The slot of this process, if it is an executor; NULL in any other, also in its parallel workers.
 * Set once, when it attaches.
 */
extern SharedExecutor *MyExecutor;

/* Executors. */
extern SharedExecutor *executor_slot_reserve(Oid database, Oid role, MonoTime now);
extern SharedExecutor *executor_slot_attach(int slot, uint32 generation);
extern void executor_slot_connected(SharedExecutor *me);
extern void executor_slot_leave(SharedExecutor *slot, uint32 generation);
extern void executor_slot_leave_locked(SharedExecutor *slot);
extern bool executor_slots_leave(Oid database, bool forget);
extern bool executor_slot_retire(SharedExecutor *me);
extern void executor_slot_release(SharedExecutor *me);
extern void executor_slot_forget(SharedExecutor *slot, uint32 generation);
extern SharedExecutor *executor_slot_of_leader(void);
extern Oid
executor_slot_interrupt(SharedExecutor *slot, Oid relid, int64 id, int attempt, Oid role);
extern void executor_slot_signal(SharedExecutor *slot, uint32 position);
extern bool executor_slot_own_task(int64 *id, TimestampTz *planned);

#endif /* PG_TASK_SLOTS_H */
