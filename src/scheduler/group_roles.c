/*
 * group_roles.c
 *		The roles that have waiting rows.
 *
 * Each has a bound if groups of it that are due were forgotten (surplus.c): nothing at the bound or
 * behind it in the order starts a task, until a scan has found again what was forgotten.
 *
 * This file is plain memory: no SPI, no shared memory, and it reads no clock.  lanes.c keeps the
 * roles in order.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "scheduler/group_roles.h"
#include "scheduler/hash_insert.h"

typedef struct RoleEntry
{
	char *name;
	uint32 hash;
	char status;
	GroupRole *role;
} RoleEntry;

#define SH_PREFIX roletable
#define SH_ELEMENT_TYPE RoleEntry
#define SH_KEY name
#include "scheduler/name_hash.h"

/* Static, because roles are remembered from iteration to iteration. */
static struct
{
	MemoryContext context; /* of all roles */
	roletable_hash *table;
	pairingheap_comparator compare_lanes; /* of the heap of each role */
	int nbounded;						  /* roles with a bound */
	bool lost_bound; /* since the last scan began, a role with a bound was forgotten */
} roles;

DEFINE_HASH_INSERT(insert_role, roletable, RoleEntry, char *)

void
group_roles_create(MemoryContext context, pairingheap_comparator compare_lanes)
{
	memset(&roles, 0, sizeof(roles));
	roles.context = context;
	roles.compare_lanes = compare_lanes;
	roles.table = roletable_create(context, 16, NULL);
}

/* Return the role with this name; NULL if no group of it is known. */
GroupRole *
group_role_find(const char *name)
{
	RoleEntry *entry = roletable_lookup(roles.table, (char *) name);

	return entry ? entry->role : NULL;
}

GroupRole *
group_role_find_or_add(const char *name)
{
	GroupRole *role = group_role_find(name);
	RoleEntry *entry;

	if (role)
		return role;
	name = MemoryContextStrdup(roles.context, name);
	role = MemoryContextAllocZero(roles.context, sizeof(GroupRole));
	role->name = (char *) name;
	role->lanes.ph_compare = roles.compare_lanes;
	dlist_init(&role->all_lanes);
	dlist_init(&role->fronts);
	dlist_init(&role->away);
	entry = insert_role(roles.table, role->name);
	entry->role = role;
	return role;
}

/* Forget a role that has no lanes. */
void
group_role_free(GroupRole *role)
{
	Assert(!role->ready && role->nlanes == 0);
	roles.nbounded -= role->bounded;
	roles.lost_bound |= role->bounded;
	roletable_delete(roles.table, role->name);
	pfree(role->name);
	pfree(role);
}

/* Must this position of a role wait, because a forgotten group may come before it? */
bool
group_role_is_behind(const GroupRole *role, const OrderKey *key)
{
	return role->bounded && order_compare_keys(key, &role->bound) <= 0;
}

/* Is this position of a role one that has been forgotten since the last scan began? */
bool
group_role_forgot(const GroupRole *role, const OrderKey *key)
{
	return role->next_bounded && order_compare_keys(key, &role->next_bound) <= 0;
}

/* A due group of this role and position is forgotten: nothing behind it may start a task. */
void
group_role_bound(GroupRole *role, const OrderKey *key)
{
	roles.nbounded += !role->bounded;
	if (!role->bounded || order_compare_keys(key, &role->bound) > 0)
		role->bound = *key;
	if (!role->next_bounded || order_compare_keys(key, &role->next_bound) > 0)
		role->next_bound = *key;
	role->bounded = role->next_bounded = true;
}

/* A scan begins: it finds again what was forgotten until now. */
void
group_roles_scan_begin(void)
{
	roletable_iterator iter;
	RoleEntry *entry;

	roles.lost_bound = false;
	roletable_start_iterate(roles.table, &iter);
	while ((entry = roletable_iterate(roles.table, &iter)) != NULL)
		entry->role->next_bounded = false;
}

/* The scan has found it: from now on only what was forgotten since its beginning counts. */
void
group_roles_scan_end(void)
{
	roletable_iterator iter;
	RoleEntry *entry;

	roletable_start_iterate(roles.table, &iter);
	while ((entry = roletable_iterate(roles.table, &iter)) != NULL)
	{
		GroupRole *role = entry->role;

		roles.nbounded -= role->bounded && !role->next_bounded;
		role->bounded = role->next_bounded;
		role->bound = role->next_bound;
	}
}

/*
 * Has a role started all that it may before its bound?  Looks at all roles if there is a bound:
 * then there are very many groups.
 */
bool
group_roles_lack(void)
{
	roletable_iterator iter;
	RoleEntry *entry;
	bool lacks = roles.lost_bound;

	if (roles.nbounded == 0)
		return lacks;
	roletable_start_iterate(roles.table, &iter);
	while ((entry = roletable_iterate(roles.table, &iter)) != NULL)
	{
		GroupRole *role = entry->role;

		if (role->bounded && pairingheap_is_empty(&role->lanes))
			lacks = true;
		else if (role->bounded)
		{
			OrderKey key = order_key(order_first_group(order_first_lane(role)));

			lacks |= group_role_is_behind(role, &key);
		}
	}
	return lacks;
}

/* The number of roles that have groups. */
int
group_roles_count(void)
{
	return (int) roles.table->members;
}
