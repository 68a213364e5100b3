/*
 * named_table.c
 *		The names in a statement of ours mean the table that was checked.
 *
 * Our statements contain the name of a table that we have locked and checked.  The lock keeps its
 * name, but not that of its schema, and the server resolves names when it parses a statement and
 * again whenever it makes a new plan.  If another relation has the name by then, the statement must
 * not run: it may be a view of an owner, who can rename schemas, in the place of his table.
 *
 * This file knows no table and no statement.
 */
#include "postgres.h"

#include "access/transam.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "parser/analyze.h"

#include "compat.h"
#include "task/named_table.h"
#include "task/table.h"

/* Hooks take no argument: what they check is here. */
static NamedTable expected;
static post_parse_analyze_hook_type next_analyze;

/* Raise an error if a query of ours uses another table that is not the server's own. */
static bool
check_tables(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, RangeTblEntry))
	{
		RangeTblEntry *entry = (RangeTblEntry *) node;

		if (entry->rtekind == RTE_RELATION && entry->relid != expected.relid &&
			entry->relid >= FirstNormalObjectId)
			ereport(ERROR, (errcode(ERRCODE_TABLE_CHANGED), errmsg("the task table has changed")));
		return false;
	}
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, COMPAT_WALKER(check_tables), context,
								 QTW_EXAMINE_RTES_BEFORE);
	return expression_tree_walker(node, COMPAT_WALKER(check_tables), context);
}

/* post_parse_analyze hook. */
static void
check_analyzed_statement(ParseState *pstate, Query *query, COMPAT_JUMBLE_STATE *jumble)
{
	if (expected.text && strcmp(pstate->p_sourcetext, expected.text) == 0)
		(void) check_tables((Node *) query, NULL);
	if (next_analyze)
		next_analyze(pstate, query, jumble);
}

/* Called once, before any process starts. */
void
named_table_define(void)
{
	Assert(post_parse_analyze_hook != check_analyzed_statement);
	next_analyze = post_parse_analyze_hook;
	post_parse_analyze_hook = check_analyzed_statement;
}

/*
 * The caller executes this statement, which may use no table but this one, and calls
 * named_table_restore with the result, also after an error.
 */
NamedTable
named_table_expect(const char *text, Oid relid)
{
	NamedTable outer = expected;

	expected.text = text;
	expected.relid = relid;
	return outer;
}

void
named_table_restore(NamedTable outer)
{
	expected = outer;
}
