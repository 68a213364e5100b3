/*
 * zones.c
 *		Time zones by name.
 *
 * This file reads no setting and no catalog.
 */
#include "postgres.h"

#include "nodes/memnodes.h"
#include "utils/memutils.h"

#include "zones.h"

/* More than all zones of the tz database need, at 24 kB each. */
#define ZONES_MAX ((Size) 32 * 1024 * 1024)

/*
 * Return the zone that SET TimeZone takes by this name; NULL: there is none.  A zone with leap
 * seconds is not one: the server computes without them.
 */
pg_tz *
zone_find(const char *name)
{
	pg_tz *zone = pg_tzset(name);

	return zone && pg_tz_acceptable(zone) ? zone : NULL;
}

/*
 * Do the zones that this process has loaded take too much memory?  The server keeps each until the
 * process exits, and a user can name any number of them: "A1", "A1:01", ...
 */
bool
zones_fill_memory(void)
{
	MemoryContext context = TopMemoryContext->firstchild;

	for (; context; context = context->nextchild)
		if (context->ident && strcmp(context->ident, "Timezones") == 0)
			return MemoryContextMemAllocated(context, true) > ZONES_MAX;
	return false;
}
