/*
 * role_line.c
 *		The roles that have due tasks and no executor, in the order of their needs.
 *
 * A role that has none, and for which none can be started, is set aside: it stays skipped in round
 * after round, and waits in line until it is called.  Each round calls the first few, and more as
 * long as executors are started for them.  So a round costs what it starts, however many roles
 * wait.  A role gets an executor only when it is called, so one that is set aside has none.
 *
 * The roles that are refused by the connection limit of the database have a line of their own: they
 * are called until one of them is refused again, and do not stand before those that have no limit.
 * Those that may have no executor at all are not called until databases or roles have changed.
 *
 * This file is plain memory: no SPI, no shared memory, and it reads no clock.  It knows nothing of
 * executors: choice.c says since when a role needs one.
 */
#include "postgres.h"

#include "scheduler/lanes.h"
#include "scheduler/role_line.h"

/* Not each change of a limit is reported: roles are looked at again after this time (ms). */
#define RECALL_MS 10000

/* Static, because the line is remembered from iteration to iteration. */
static struct
{
	pairingheap lines[ROLE_LINES]; /* those that are set aside */
	dlist_head called;			   /* those that the round has called, and has not looked at */
	uint64 number;				   /* of the last role that came into a line */
	int count;					   /* of roles that are set aside */
	uint32 changes;				   /* counter of changes when barred ones were called back ... */
	MonoTime recalled;			   /* ... and when that was */
} line;

/* Positive if "a" is called first: it waits for a longer time, or came first. */
static int
compare_waiting(const pairingheap_node *a, const pairingheap_node *b,
				void *arg pg_attribute_unused())
{
	const GroupRole *left = pairingheap_const_container(GroupRole, line, a);
	const GroupRole *right = pairingheap_const_container(GroupRole, line, b);

	if (left->since.us != right->since.us)
		return left->since.us < right->since.us ? 1 : -1;
	return left->number < right->number ? 1 : -1;
}

void
role_line_create(void)
{
	RoleLine which;

	memset(&line, 0, sizeof(line));
	for (which = 0; which < ROLE_LINES; which++)
		line.lines[which].ph_compare = compare_waiting;
	dlist_init(&line.called);
}

/* A role that was called is looked at, or forgotten. */
static void
end_call(GroupRole *role)
{
	if (role->called)
		dlist_delete(&role->called_node);
	role->called = false;
}

/* Set a role aside that needs an executor since this time.  It is skipped in this round. */
void
role_line_add(GroupRole *role, MonoTime since, RoleLine which)
{
	Assert(role->skipped && !role->aside);
	end_call(role);
	if (role->number == 0 || role->since.us != since.us)
		role->number = ++line.number;
	role->since = since;
	role->which = which;
	lanes_set_aside(role);
	pairingheap_add(&line.lines[which], &role->line);
	line.count++;
}

/* The role is forgotten. */
void
role_line_forget(GroupRole *role)
{
	end_call(role);
	if (role->aside)
	{
		pairingheap_remove(&line.lines[role->which], &role->line);
		line.count--;
	}
	role->aside = false;
}

/* The first group of the role is looked at: if it has no executor, it comes into the line again. */
void
role_line_look(GroupRole *role)
{
	end_call(role);
}

/* Have the next round call barred roles back: what bars them may have changed. */
void
role_line_recall_all(void)
{
	line.recalled = CLOCK_LONG_AGO;
}

/*
 * A round begins.  If databases or roles have changed since barred ones were called back last, by
 * this counter of changes, or that was long ago, these wait in line as others do.
 */
void
role_line_recall(uint32 changes, MonoTime now)
{
	pairingheap *barred = &line.lines[ROLE_LINE_BARRED];

	if (changes == line.changes && !clock_exceeds(line.recalled, now, RECALL_MS))
		return;
	line.changes = changes;
	line.recalled = now;
	while (!pairingheap_is_empty(barred))
	{
		GroupRole *role = pairingheap_container(GroupRole, line, pairingheap_remove_first(barred));

		role->which = ROLE_LINE_OPEN;
		pairingheap_add(&line.lines[ROLE_LINE_OPEN], &role->line);
	}
}

/* Call the first roles of one line. */
static int
call_from(pairingheap *roles, MonoTime before, int limit)
{
	int count = 0;

	while (count < limit && !pairingheap_is_empty(roles))
	{
		GroupRole *role = pairingheap_container(GroupRole, line, pairingheap_first(roles));

		if (!clock_is_before(role->since, before))
			break;
		(void) pairingheap_remove_first(roles);
		line.count--;
		role->called = true;
		dlist_push_tail(&line.called, &role->called_node);
		lanes_bring_back(role);
		count++;
	}
	return count;
}

/*
 * Call the first roles in line that wait since before "before", up to this number: their tasks take
 * part in this round.  "full": the connection limit of the database is reached, so those that it
 * concerns are not called; otherwise as many of them.  Returns how many.
 */
int
role_line_call(MonoTime before, int limit, bool full)
{
	int count = call_from(&line.lines[ROLE_LINE_OPEN], before, limit);

	return full ? count : count + call_from(&line.lines[ROLE_LINE_FULL], before, limit);
}

/*
 * The round has ended, perhaps before it has looked at all roles that it has called: these keep
 * their places in the line.  Those with no task that may start leave it.
 */
void
role_line_end_round(void)
{
	while (!dlist_is_empty(&line.called))
	{
		GroupRole *role = dlist_head_element(GroupRole, called_node, &line.called);

		end_call(role);
		if (pairingheap_is_empty(&role->lanes))
			continue;
		lanes_skip_role(role);
		role_line_add(role, role->since, role->which);
	}
}

/* Is a role set aside that may be called? */
bool
role_line_waits(void)
{
	return !pairingheap_is_empty(&line.lines[ROLE_LINE_OPEN]) ||
		   !pairingheap_is_empty(&line.lines[ROLE_LINE_FULL]);
}

/* Are roles barred?  *changes is the counter of changes as it was before that was found out. */
bool
role_line_has_barred(uint32 *changes)
{
	*changes = line.changes;
	return !pairingheap_is_empty(&line.lines[ROLE_LINE_BARRED]);
}

/* Return how many roles are set aside. */
int
role_line_count(void)
{
	return line.count;
}
