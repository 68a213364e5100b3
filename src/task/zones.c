/*
 * zones.c
 *		Time zones by name.
 *
 * This file reads no setting and no catalog.
 */
#include "postgres.h"

#include "task/zones.h"

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
