/*
 * dispatch.c
 *		One round: choose tasks, claim them in one commit, and assign them to executors.
 *
 * What the claim does not find is somebody's who has locked or changed the row, or it has
 * expired; its place in the queue is free again.
 */
#include "postgres.h"

#include "scheduler/choice.h"
#include "scheduler/dispatch.h"
#include "scheduler/groups.h"
#include "scheduler/pool.h"
#include "scheduler/refused.h"
#include "scheduler/scan.h"
#include "scheduler/unstarted.h"
#include "scheduler/work.h"
#include "settings.h"
#include "shared/crash.h"
#include "task/rows.h"

/* When a row could not be claimed, the next scan comes no later (ms). */
#define LOCKED_SCAN_MS 1000

bool dispatch_row_locked = false;

/* The message for the executor. */
static void
make_task(const Claim *claim, const Choice *choice, bool isolated, SharedTask *task)
{
	task->run = claim->run;
	task->isolated = isolated;
	task->role = choice->role;
	task->relid = work.table->relid;
	strlcpy(task->role_name, choice->group->key.role, NAMEDATALEN);
	task->timeout = claim->timeout;
	task->repeats = claim->repeats;
	task->deletes = claim->deletes;
	task->notify = choice->group->key.max != TASK_UNLIMITED;
	task->elapsed = 0;
	task->cancelled = false;
	task->format = -1;
	if (claim->format)
		task->format = settings_format(claim->format);
	strlcpy(task->queue, choice->queue->name, NAMEDATALEN);
	task->request_len = -1;
	if (claim->request)
	{
		task->request_len = strlen(claim->request);
		memcpy(task->request, claim->request, task->request_len);
	}
}

static int
compare_claims(const void *a, const void *b)
{
	int64 left = ((const Claim *) a)->run.id;
	int64 right = ((const Claim *) b)->run.id;

	return left < right ? -1 : left > right;
}

/* Of claims in the order of their ids, the one of this task, or NULL. */
static Claim *
find_claim(Claim *claims, int count, const Candidate *candidate)
{
	Claim key = {.run.id = candidate->place.id};
	Claim *claim = bsearch(&key, claims, count, sizeof(Claim), compare_claims);

	/* the statement sees to it; but what runs as whom is not to hang on that alone */
	if (claim && (strcmp(claim->role, candidate->group->role) != 0 ||
				  claim->role_id != candidate->group->role_id))
		elog(ERROR, "a task of another role was claimed");
	return claim;
}

/* Within a transaction: claim what was chosen, and nothing else. */
static int
claim_candidates(ClockNow now, Claim **claims)
{
	int count = rows_claim(work.table, choice_candidates, choice_count, now.wall,
						   crash_claim_time(now.wall), claims);

	qsort(*claims, count, sizeof(Claim), compare_claims);
	/* a row that somebody has locked may be the same as before when he lets go */
	dispatch_row_locked |= count < choice_count;
	if (count < choice_count)
		scan_no_later(clock_plus_ms(now.mono, LOCKED_SCAN_MS));
	return count;
}

/* One that was not claimed: somebody has locked or changed it, or it has expired. */
static void
let_go(const Candidate *candidate, QueueState *queue)
{
	groups_task_ended(queue);
	unstarted_expire(candidate);
}

/* Assign what was claimed, in the order of choice; let go of what was not. */
static void
assign_claims(Claim *claims, int count)
{
	static SharedTask task;
	int i;

	for (i = 0; i < choice_count; i++)
	{
		Claim *claim = find_claim(claims, count, &choice_candidates[i]);
		QueueState *queue = choice_list[i].queue;

		choice_learn(i, claim != NULL);
		if (claim)
			make_task(claim, &choice_list[i], choice_candidates[i].isolated, &task);
		/* from here on it is not counted as chosen any more, even after an error */
		choice_list[i].queue = NULL;
		if (claim)
			pool_assign(choice_list[i].executor, choice_list[i].generation, queue, &task);
		else
			let_go(&choice_candidates[i], queue);
	}
	choice_count = 0;
	pool_wake();
}

/* Claim and hand out once.  False: nothing more may start now. */
bool
dispatch_round(ClockNow now, bool *wants_executor)
{
	Claim *claims = NULL;
	int count = 0;
	bool more;

	if (!groups_ready(now))
	{
		choice_none();
		return false;
	}
	work_begin("claiming tasks");
	more = choice_make(work.table, now, refused_singly(REFUSED_CLAIM) ? 1 : CHOICE_MAX,
					   wants_executor) ||
		   choice_count > 0;
	if (choice_count > 0)
		count = claim_candidates(now, &claims);
	work_end();
	refused_batch_written(REFUSED_CLAIM);
	assign_claims(claims, count);
	return more;
}
