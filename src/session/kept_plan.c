/*
 * kept_plan.c
 *		Executes a statement for each row of a trigger, by a plan that is kept while the statement
 *		stays the same.
 *
 * Whatever an error interrupts, a plan that is kept belongs to the text beside it.  This file knows
 * no table.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"

#include "session/kept_plan.h"
#include "task/table.h"

/* Keep a plan of this statement instead of the one that is kept. */
static void
keep(KeptPlan *kept, const char *sql, Oid relid, int count, Oid *types)
{
	SPIPlanPtr plan = SPI_prepare_cursor(sql, count, types, CURSOR_OPT_GENERIC_PLAN);
	char *copy;

	Assert(!kept->busy);
	if (plan == NULL)
		elog(ERROR, "could not prepare \"%s\": %s", sql, SPI_result_code_string(SPI_result));
	copy = MemoryContextStrdup(TopMemoryContext, sql);
	if (kept->sql)
	{
		pfree(kept->sql);
		kept->sql = NULL;
		SPI_freeplan(kept->plan);
	}
	SPI_keepplan(plan);
	kept->plan = plan;
	kept->planned_for = InvalidOid;
	kept->relid = relid;
	kept->sql = copy;
}

/*
 * Make the planner use indexes only.  The table may be empty when the plan is made, and it grows
 * while the plan is kept: an INSERT of many rows would read all of them for each.
 */
static void
fix_planner(void)
{
	static const char *const off[] = {"enable_seqscan", "enable_hashjoin", "enable_mergejoin",
									  "enable_material"};
	int i;

	for (i = 0; i < (int) lengthof(off); i++)
		(void) set_config_option(off[i], "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true,
								 0, false);
}

/*
 * Will the server plan the statement again when it is executed?  It does so after a change of the
 * table or of its statistics, and for another user, who has other policies.
 */
static bool
is_planned_anew(const KeptPlan *kept)
{
	return kept->planned_for != GetUserId() || kept->row_security != row_security ||
		   !SPI_plan_is_valid(kept->plan);
}

/* The snapshot for a statement; InvalidSnapshot: that of the transaction, or a new one. */
static Snapshot
snapshot_of(const KeptPlan *kept)
{
	return kept->latest && IsolationUsesXactSnapshot() ? GetLatestSnapshot() : InvalidSnapshot;
}

/* Execute the statement by the plan that is kept. */
static int
execute(KeptPlan *kept, const char *sql, Oid relid, int count, Oid *types, Datum *values)
{
	int nest_level = 0;
	int code;

	if (kept->sql == NULL || kept->relid != relid || strcmp(kept->sql, sql) != 0)
		keep(kept, sql, relid, count, types);
	if (is_planned_anew(kept))
	{
		nest_level = NewGUCNestLevel();
		fix_planner();
	}
	kept->busy = true;
	code = SPI_execute_snapshot(kept->plan, values, NULL, snapshot_of(kept), InvalidSnapshot, false,
								true, 0);
	kept->planned_for = GetUserId();
	kept->row_security = row_security;
	if (nest_level > 0)
		AtEOXact_GUC(true, nest_level);
	return code;
}

/*
 * Execute a statement on a task table, which stands for the %s in its text and is the only table
 * that it names, connected to SPI.  Returns the number of rows.
 */
int
kept_plan_execute(KeptPlan *kept, const char *text, Oid relid, int count, Oid *types, Datum *values)
{
	char *name = quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
											get_rel_name(relid));
	char *rows = psprintf("%s%s", get_rel_relkind(relid) == RELKIND_RELATION ? "ONLY " : "", name);
	char *sql = psprintf(text, rows);
	bool busy = kept->busy;
	NamedTable outer = named_table_expect(sql, relid);
	volatile int code = 0;

	PG_TRY();
	{
		code = busy ? SPI_execute_with_args(sql, count, types, values, NULL, false, 0)
					: execute(kept, sql, relid, count, types, values);
	}
	PG_FINALLY();
	{
		named_table_restore(outer);
		kept->busy = busy;
	}
	PG_END_TRY();
	if (code < 0)
		elog(ERROR, "could not execute a statement on %s", name);
	return (int) SPI_processed;
}
