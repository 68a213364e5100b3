/*
 * history_flows.c
 *		Rows of flows that have not ended stay, however old they are.
 *
 * For each flow the rows are asked once in a walk, so a walk costs the same for a flow of many rows
 * as for many flows.  A flow that ends later is found so in the next walk.
 *
 * This file removes nothing.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "scheduler/history_flows.h"
#include "scheduler/scheduler.h"
#include "shared/clock.h"

/* Maximum number of flows that are known at a time, about 40 bytes each: then all are forgotten. */
#define FLOWS_MAX 10000

/* After this time (us) no other flow is asked for in a slice: its rows stay until the next walk. */
#define ASK_MAX_US 200000

/* What is known of a flow, by a hash of its name. */
typedef struct FlowEntry
{
	uint64 hash;
	bool open;
} FlowEntry;

/* Static, because it is known from one slice of the walk to the next.  NULL: nothing is. */
static HTAB *flows = NULL;

/* A walk begins: nothing is known of any flow. */
void
history_flows_forget(void)
{
	HTAB *old = flows;

	flows = NULL;
	if (old)
		hash_destroy(old);
}

static void
create_flows(void)
{
	HASHCTL control = {.keysize = sizeof(uint64), .entrysize = sizeof(FlowEntry)};

	if (flows && hash_get_num_entries(flows) >= FLOWS_MAX)
		history_flows_forget();
	if (flows)
		return;
	control.hcxt = TopMemoryContext;
	flows = hash_create("pg_task flows", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* Is this flow known to have ended?  If it is not known yet, ask the rows, unless it is late. */
static bool
has_ended(const char *flow, MonoTime late)
{
	uint64 hash =
		DatumGetUInt64(hash_any_extended((const unsigned char *) flow, (int) strlen(flow), 0));
	bool found = hash_search(flows, &hash, HASH_FIND, NULL) != NULL;
	FlowEntry *entry;

	if (!found && !clock_is_before(clock_mono(), late))
		return false;
	entry = hash_search(flows, &hash, HASH_ENTER, NULL);
	if (!found)
	{
		entry->open = true; /* if an error interrupts this */
		entry->open = rows_flow_open(MyScheduler->table, flow);
	}
	return !entry->open;
}

/*
 * Leave of these rows, whose time is over, only those whose flow has ended or that have none.
 * Returns their number.  Called within a transaction.
 */
int
history_flows_filter(HistoryRow *rows, int count)
{
	MonoTime late = clock_mono();
	int left = 0;
	int i;

	late.us += ASK_MAX_US;
	for (i = 0; i < count; i++)
	{
		if (rows[i].flow)
			create_flows();
		if (rows[i].flow == NULL || has_ended(rows[i].flow, late))
			rows[left++] = rows[i];
	}
	return left;
}
