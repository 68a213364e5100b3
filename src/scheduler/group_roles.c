/*
 * group_roles.c
 *		The roles that have waiting rows.
 *
 * This file is plain memory: no SPI, no shared memory, and it reads no clock.  lanes.c keeps the
 * roles in order.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "scheduler/group_roles.h"

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

/* Return the role with this OID, if that is known; otherwise NULL.  A loop over all. */
GroupRole *
group_role_of(Oid role)
{
	roletable_iterator iter;
	RoleEntry *entry;

	roletable_start_iterate(roles.table, &iter);
	while ((entry = roletable_iterate(roles.table, &iter)) != NULL)
		if (entry->role->oid == role)
			return entry->role;
	return NULL;
}

/* Forget a role that has no lanes. */
void
group_role_free(GroupRole *role)
{
	Assert(!role->ready && role->nlanes == 0);
	roletable_delete(roles.table, role->name);
	pfree(role->name);
	pfree(role);
}
