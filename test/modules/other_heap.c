/*
 * other_heap.c
 *		A table access method that is not the heap, although it works in the same way.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "fmgr.h"
#include "nodes/execnodes.h"
#include "utils/rel.h"

PG_MODULE_MAGIC;

/* The heap builds indexes of its own tables only. */
static double
build_index(Relation rel, Relation index, IndexInfo *info, bool sync, bool any, bool progress,
			BlockNumber first, BlockNumber count, IndexBuildCallback callback, void *state,
			TableScanDesc scan)
{
	const TableAmRoutine *own = rel->rd_tableam;
	double rows;

	rel->rd_tableam = GetHeapamTableAmRoutine();
	rows = rel->rd_tableam->index_build_range_scan(rel, index, info, sync, any, progress, first,
												   count, callback, state, scan);
	rel->rd_tableam = own;
	return rows;
}

PG_FUNCTION_INFO_V1(other_heap);
Datum
other_heap(PG_FUNCTION_ARGS pg_attribute_unused())
{
	static TableAmRoutine methods;

	methods = *GetHeapamTableAmRoutine();
	methods.index_build_range_scan = build_index;
	PG_RETURN_POINTER(&methods);
}
