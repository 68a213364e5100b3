/*
 * survey.c
 *		What the slots of all processes say at one moment, for functions that SQL calls.
 *
 * It takes the locks in shared mode, one after the other, and changes nothing.
 */
#include "postgres.h"

#include "storage/lwlock.h"
#include "storage/proc.h"

#include "shared/slots.h"
#include "shared/survey.h"

/* Look at the scheduler of the database.  The caller holds the directory lock. */
static void
survey_scheduler(const SurveySubject *subject, Survey *survey)
{
	SharedScheduler *slot = scheduler_slot_find(subject->database);

	survey->supervised = Shared->supervisor != SHARED_NO_PROC;
	survey->crowded = Shared->crowded;
	if (slot == NULL)
		return;
	survey->state = slot->state;
	if (slot->proc != SHARED_NO_PROC)
		survey->scheduler_pid = GetPGProcByNumber(slot->proc)->pid;
	LWLockAcquire(slot->lock, LW_SHARED);
	survey->prepared = OidIsValid(slot->relid);
	LWLockRelease(slot->lock);
}

/* Look at a task in the ring of an executor.  The caller holds the executor's lock. */
static void
survey_task(const SurveySubject *subject, const SharedExecutor *slot, uint32 position,
			Survey *survey)
{
	const SharedTask *task = &slot->ring[position % SHARED_RING];

	survey->isolated |= task->isolated;
	if (slot->database != subject->database)
		return;
	survey->of_queue += strcmp(task->queue, subject->queue) == 0;
	if (!task_same_run(task->run, subject->run))
		return;
	survey->has_run = true;
	survey->has_begun = (int32) (slot->taken - position) > 0;
	survey->executor_pid = slot->pid;
}

/* Look at an executor.  The caller holds the directory lock. */
static void
survey_executor(const SurveySubject *subject, SharedExecutor *slot, Survey *survey)
{
	bool is_mine = slot->database == subject->database && slot->role == subject->role;
	bool busy;
	uint32 i;

	if (slot->state == EXECUTOR_FREE)
		return;
	LWLockAcquire(slot->lock, LW_SHARED);
	busy = slot->reserved || slot->assigned != slot->done;
	for (i = slot->done; i != slot->assigned; i++)
		survey_task(subject, slot, i, survey);
	LWLockRelease(slot->lock);
	survey->busy += busy;
	survey->of_role += slot->role == subject->role;
	survey->of_database += slot->database == subject->database;
	survey->has_idle |= is_mine && !busy && slot->state == EXECUTOR_READY;
}

/* Look at all slots.  The loop is bounded by pg_task.max_executors and the size of the rings. */
Survey
survey_take(const SurveySubject *subject)
{
	Survey survey = {.state = SCHEDULER_FREE};
	int i;

	LWLockAcquire(Shared->directory, LW_SHARED);
	survey_scheduler(subject, &survey);
	for (i = 0; i < Shared->nexecutors; i++)
		survey_executor(subject, &Shared->executors[i], &survey);
	LWLockRelease(Shared->directory);
	return survey;
}
