/*
 * role_state.c
 *		What the scheduler remembers of each role: whether its executors can connect, and when
 *		it last got one.
 *
 * This file is plain memory of the scheduler, and reads no clock.
 */
#include "postgres.h"

#include "lib/ilist.h"
#include "utils/hsearch.h"

#include "scheduler/role_state.h"

/*
 * Delay of the next start for a role, after an executor of it could not connect (ms): doubled each
 * time, up to the second.
 */
#define RETRY_MS 1000
#define RETRY_MAX_MS 30000

/*
 * A role is forgotten if it has got no executor for this time (ms).  They are looked at when there
 * are twice as many as were left the last time, and at least ROLES_MANY: roles may be created and
 * dropped all the time.
 */
#define ROLE_MEMORY_MS (10 * 60 * 1000)
#define ROLES_MANY 1000

typedef struct RoleState
{
	Oid role;		   /* key of the hash table */
	MonoTime retry_at; /* no start before this, because an executor could not connect */
	int retry_ms;	   /* the last delay; 0: the last executor could connect */
	bool waits;		   /* it is in the list of roles with a "retry_at" ... */
	dlist_node node;   /* ... that has not passed */
	MonoTime granted;  /* when it last got an executor */
} RoleState;

/* Static, because these facts outlive the executors and the rounds in which they were learnt. */
static HTAB *roles = NULL;
static dlist_head waiting = DLIST_STATIC_INIT(waiting);
static long tidy_at; /* number of roles at which those that are not needed are forgotten */

void
role_state_create(void)
{
	HASHCTL ctl = {.keysize = sizeof(Oid), .entrysize = sizeof(RoleState)};

	tidy_at = ROLES_MANY;
	roles = hash_create("pg_task roles", 16, &ctl, HASH_ELEM | HASH_BLOBS);
}

static RoleState *
find_or_add_role(Oid role)
{
	bool found;
	RoleState *state = hash_search(roles, &role, HASH_ENTER, &found);

	if (!found)
		memset((char *) state + sizeof(Oid), 0, sizeof(RoleState) - sizeof(Oid));
	return state;
}

/* What is known of this role; NULL: nothing. */
static RoleState *
find_role(Oid role)
{
	return hash_search(roles, &role, HASH_FIND, NULL);
}

/* If there are very many roles, forget those that have not been served for long. */
static void
forget_roles(MonoTime now)
{
	HASH_SEQ_STATUS scan;
	RoleState *state;

	if (hash_get_num_entries(roles) < tidy_at)
		return;
	hash_seq_init(&scan, roles);
	while ((state = hash_seq_search(&scan)) != NULL)
		if (!state->waits && clock_exceeds(state->granted, now, ROLE_MEMORY_MS))
			(void) hash_search(roles, &state->role, HASH_REMOVE, NULL);
	tidy_at = Max(ROLES_MANY, 2 * hash_get_num_entries(roles));
}

/* An executor of this role has connected. */
void
role_connected(Oid role)
{
	RoleState *state = find_role(role);

	if (state)
		state->retry_ms = 0;
}

/* An executor of this role has exited before it was connected. */
void
role_connection_failed(Oid role, MonoTime now)
{
	RoleState *state = find_or_add_role(role);

	state->retry_ms = Min(Max(state->retry_ms * 2, RETRY_MS), RETRY_MAX_MS);
	state->retry_at = clock_plus_ms(now, state->retry_ms);
	if (!state->waits)
		dlist_push_tail(&waiting, &state->node);
	state->waits = true;
}

/* May an executor of this role be started, or have the last ones failed to connect? */
bool
role_may_connect(Oid role, MonoTime now)
{
	const RoleState *state = find_role(role);

	return state == NULL || !clock_is_before(now, state->retry_at);
}

/*
 * Return when the next role may connect again; CLOCK_NEVER if all may.  A loop over the roles that
 * could not connect.
 */
MonoTime
role_connections_until(MonoTime now)
{
	MonoTime until = CLOCK_NEVER;
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &waiting)
	{
		RoleState *state = dlist_container(RoleState, node, iter.cur);

		if (clock_is_before(now, state->retry_at))
			until = clock_min(until, state->retry_at);
		else
		{
			dlist_delete(&state->node);
			state->waits = false;
		}
	}
	return until;
}

/* An executor of this role was started. */
void
role_granted(Oid role, MonoTime now)
{
	forget_roles(now);
	find_or_add_role(role)->granted = now;
}

/* When did this role get its last executor?  Long ago if it has got none. */
MonoTime
role_last_granted(Oid role)
{
	const RoleState *state = find_role(role);

	return state ? state->granted : (MonoTime){0};
}
