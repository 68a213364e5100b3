/*
 * callback_slots.c
 *		A library that takes seven of the ten relcache callbacks that the server has for each
 *		process.  It is preloaded, so each process has them from its start.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/inval.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

#define TAKEN 7

static void
ignore_relation(Datum arg pg_attribute_unused(), Oid relid pg_attribute_unused())
{
}

void
_PG_init(void)
{
	int i;

	for (i = 0; i < TAKEN; i++)
		CacheRegisterRelcacheCallback(ignore_relation, (Datum) 0);
}
