/*
 * owner_code.c
 *		Finds code of a table's owner that the use of the table could run: code that is neither
 *		written in C nor built into the server.
 *
 * Such code runs with the owner's rights in the process that acts as the owner.  If that process
 * has run code of a tenant before, a function may have been compiled under the tenant's settings,
 * so that its names mean what the tenant wants.  The callers decide what follows.
 *
 * This file reads catalogs.  It evaluates no expression, and simplifies none: that would run code.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/transam.h"
#include "catalog/objectaddress.h"
#include "catalog/partition.h"
#include "catalog/pg_amop.h"
#include "catalog/pg_amproc.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_index.h"
#include "catalog/pg_language.h"
#include "catalog/pg_partitioned_table.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_rewrite.h"
#include "catalog/pg_statistic_ext.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "nodes/nodeFuncs.h"
#include "parser/parse_coerce.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "compat.h"
#include "task/owner_code.h"
#include "task/relation.h"

/*
 * Could this function run such code, if the server itself calls it: a trigger, or a function of a
 * type or of an operator class?  InvalidOid: there is no function.
 */
static bool
function_runs_code(Oid function)
{
	HeapTuple tuple;
	Oid language = InvalidOid;

	if (function < FirstNormalObjectId)
		return false;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (HeapTupleIsValid(tuple))
	{
		language = ((Form_pg_proc) GETSTRUCT(tuple))->prolang;
		ReleaseSysCache(tuple);
	}
	return language != ClanguageId && language != INTERNALlanguageId;
}

/*
 * Could a call of this built-in function in an expression run such code?  Many could, by an
 * argument that names a type, a relation or a query, or that has any type, whose casts they look
 * up.  Not those that are immutable, nor those without an argument, nor those that depend on the
 * time zone alone, nor the few that are listed here.
 */
static bool
built_in_runs_code(Oid function)
{
	HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc form;
	bool takes_time = false;
	bool harmless;
	int i;

	if (!HeapTupleIsValid(tuple))
		return true;
	form = (Form_pg_proc) GETSTRUCT(tuple);
	for (i = 0; i < form->pronargs; i++)
		takes_time |= TypeCategory(form->proargtypes.values[i]) == TYPCATEGORY_DATETIME ||
					  form->proargtypes.values[i] == INTERVALOID;
	harmless = form->pronamespace == PG_CATALOG_NAMESPACE && form->prokind == PROKIND_FUNCTION &&
			   function != F_SATISFIES_HASH_PARTITION &&
			   (form->provolatile == PROVOLATILE_IMMUTABLE || form->pronargs == 0 ||
				(form->provolatile == PROVOLATILE_STABLE && takes_time) || function == F_NEXTVAL ||
				function == F_CURRENT_SETTING_TEXT || function == F_CURRENT_SETTING_TEXT_BOOL);
	ReleaseSysCache(tuple);
	return !harmless;
}

/* What is asked for each function, while "barred".  Static, because a hook has no argument. */
static struct
{
	int barred; /* the code of the error; 0: nothing is barred */
	needs_fmgr_hook_type next;
} calls;

/*
 * The server asks this before it calls or inlines a function, unless that is built in: raise an
 * error for code that must not run.
 */
static bool
refuse_function(Oid function)
{
	if (calls.barred && function_runs_code(function))
		ereport(ERROR, (errcode(calls.barred),
						errmsg("code of the owner of the task table must not run in this session"),
						errdetail("It is function %s.", format_procedure(function))));
	return calls.next && calls.next(function);
}

/* Called once per process. */
void
owner_code_define(void)
{
	calls.next = needs_fmgr_hook;
	needs_fmgr_hook = refuse_function;
}

/*
 * Have every call of such code raise an error with this code, or none if that is 0, and return what
 * was so before: objects may be added after owner_code_find.  The caller restores that after an
 * error.
 */
int
owner_code_bar(int sqlstate)
{
	int before = calls.barred;

	calls.barred = sqlstate;
	return before;
}

/*
 * Could a value of this type run such code: its input, its output, a comparison?  A domain could:
 * nothing tells of a change of its constraints.  A composite or a range type of a user may contain
 * one.
 */
static bool
type_runs_code(Oid type)
{
	const TypeCacheEntry *entry;
	bool varlena;
	Oid element;
	Oid input;
	Oid output;

	if (type < FirstNormalObjectId || get_typtype(type) == TYPTYPE_ENUM)
		return false;
	element = get_element_type(type);
	if (OidIsValid(element))
		return type_runs_code(element);
	if (get_typtype(type) != TYPTYPE_BASE)
		return true;
	entry = lookup_type_cache(type, TYPECACHE_EQ_OPR | TYPECACHE_LT_OPR | TYPECACHE_GT_OPR |
										TYPECACHE_CMP_PROC | TYPECACHE_HASH_PROC);
	getTypeInputInfo(type, &input, &element);
	getTypeOutputInfo(type, &output, &varlena);
	return function_runs_code(input) || function_runs_code(output) ||
		   function_runs_code(get_opcode(entry->eq_opr)) ||
		   function_runs_code(get_opcode(entry->lt_opr)) ||
		   function_runs_code(get_opcode(entry->gt_opr)) || function_runs_code(entry->cmp_proc) ||
		   function_runs_code(entry->hash_proc);
}

/* For check_functions_in_node. */
static bool
call_runs_code(Oid function, void *context pg_attribute_unused())
{
	return function < FirstNormalObjectId ? built_in_runs_code(function)
										  : function_runs_code(function);
}

/*
 * Could the server replace this operator by one that runs such code: by its negator, below NOT, or
 * by its commutator?
 */
static bool
operator_runs_code(Node *node)
{
	Oid operator= IsA(node, ScalarArrayOpExpr) ? ((ScalarArrayOpExpr *) node)->opno
											   : ((OpExpr *) node)->opno;
	Oid others[] = {get_negator(operator), get_commutator(operator)};
	int i;

	for (i = 0; i < (int) lengthof(others); i++)
		if (OidIsValid(others[i]) && call_runs_code(get_opcode(others[i]), NULL))
			return true;
	return false;
}

/* Could the evaluation of an expression run such code?  One that is not known here could. */
static bool
expression_runs_code(Node *node, void *context)
{
	if (node == NULL)
		return false;
	switch (nodeTag(node))
	{
		case T_List:
		case T_CaseWhen:
			break;
		case T_OpExpr:
		case T_DistinctExpr:
		case T_NullIfExpr:
		case T_ScalarArrayOpExpr:
			if (operator_runs_code(node) || type_runs_code(exprType(node)))
				return true;
			break;
		case T_Var:
		case T_Const:
		case T_FuncExpr:
		case T_BoolExpr:
		case T_RelabelType:
		case T_CoerceViaIO:
		case T_ArrayCoerceExpr:
		case T_ArrayExpr:
		case T_SubscriptingRef:
		case T_CaseExpr:
		case T_CaseTestExpr:
		case T_CoalesceExpr:
		case T_MinMaxExpr:
		case T_SQLValueFunction:
		case T_NextValueExpr:
		case T_NullTest:
		case T_BooleanTest:
		case T_CollateExpr:
			if (type_runs_code(exprType(node)))
				return true;
			break;
		default:
			return true;
	}
	return check_functions_in_node(node, call_runs_code, context) ||
		   expression_tree_walker(node, COMPAT_WALKER(expression_runs_code), context);
}

/* The same for an expression as a catalog has it; NULL: there is none. */
static bool
text_runs_code(const char *text)
{
	return text && expression_runs_code(stringToNode(text), NULL);
}

/* The same for a column of a catalog. */
static bool
attribute_runs_code(int cache, HeapTuple tuple, AttrNumber number)
{
	bool isnull;
	Datum value = SysCacheGetAttr(cache, tuple, number, &isnull);

	return !isnull && text_runs_code(TextDatumGetCString(value));
}

/* Could a function of this family of operators run such code? */
static bool
family_runs_code(Oid family)
{
	CatCList *procedures = SearchSysCacheList1(AMPROCNUM, ObjectIdGetDatum(family));
	CatCList *operators = SearchSysCacheList1(AMOPSTRATEGY, ObjectIdGetDatum(family));
	bool found = false;
	int i;

	for (i = 0; i < procedures->n_members && !found; i++)
	{
		HeapTuple tuple = &procedures->members[i]->tuple;

		found = function_runs_code(((Form_pg_amproc) GETSTRUCT(tuple))->amproc);
	}
	for (i = 0; i < operators->n_members && !found; i++)
	{
		HeapTuple tuple = &operators->members[i]->tuple;

		found = function_runs_code(get_opcode(((Form_pg_amop) GETSTRUCT(tuple))->amopopr));
	}
	ReleaseSysCacheList(operators);
	ReleaseSysCacheList(procedures);
	return found;
}

/* Could one of the operator classes in this column of a catalog run such code? */
static bool
classes_run_code(int cache, HeapTuple tuple, AttrNumber number)
{
	bool isnull;
	Datum value = SysCacheGetAttr(cache, tuple, number, &isnull);
	const oidvector *classes = (const oidvector *) DatumGetPointer(value);
	int i;

	for (i = 0; !isnull && i < classes->dim1; i++)
		if (family_runs_code(get_opclass_family(classes->values[i])))
			return true;
	return false;
}

/*
 * Could an entry of a catalog run such code: an index, a partitioned table, or extended statistics?
 * These are the columns of its expressions, its condition and its operator classes; 0: it has none.
 */
static bool
entry_runs_code(int cache, Oid oid, AttrNumber expressions, AttrNumber condition,
				AttrNumber classes)
{
	HeapTuple tuple = SearchSysCache1(cache, ObjectIdGetDatum(oid));
	bool found;

	if (!HeapTupleIsValid(tuple))
		return false;
	found = attribute_runs_code(cache, tuple, expressions) ||
			(condition > 0 && attribute_runs_code(cache, tuple, condition)) ||
			(classes > 0 && classes_run_code(cache, tuple, classes));
	ReleaseSysCache(tuple);
	return found;
}

/* Could a key by which rows come into this table, or into its partitions, run such code? */
static bool
partitioning_runs_code(Oid relid)
{
	List *ancestors = get_rel_relispartition(relid) ? get_partition_ancestors(relid) : NIL;
	ListCell *cell;

	foreach(cell, lcons_oid(relid, ancestors))
		if (entry_runs_code(PARTRELID, lfirst_oid(cell), Anum_pg_partitioned_table_partexprs, 0,
							Anum_pg_partitioned_table_partclass))
			return true;
	return false;
}

/*
 * Could a trigger run such code?  One of a foreign key could: its query on the other table, which
 * may write there, runs what belongs to that.
 */
static bool
trigger_runs_code(const Trigger *trigger)
{
	if (trigger->tgenabled == TRIGGER_DISABLED ||
		!(trigger->tgtype & (TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE | TRIGGER_TYPE_DELETE)))
		return false;
	return RI_FKey_trigger_type(trigger->tgfoid) != RI_TRIGGER_NONE ||
		   function_runs_code(trigger->tgfoid) || text_runs_code(trigger->tgqual);
}

/*
 * Find a trigger that could.  This looks at a copy: while it looks up a function, the server may
 * free the triggers that "rel" had.
 */
static bool
find_trigger(Relation rel, ObjectAddress *object)
{
	const TriggerDesc *triggers = CopyTriggerDesc(rel->trigdesc);
	int i;

	for (i = 0; triggers && i < triggers->numtriggers; i++)
	{
		const Trigger *trigger = &triggers->triggers[i];

		if (!trigger_runs_code(trigger))
			continue;
		if (trigger->tgisinternal && OidIsValid(trigger->tgconstraint))
			ObjectAddressSet(*object, ConstraintRelationId, trigger->tgconstraint);
		else
			ObjectAddressSet(*object, TriggerRelationId, trigger->tgoid);
		return true;
	}
	return false;
}

/* Find a column that could: its type, its default, or the expression that generates it. */
static bool
find_column(Relation rel, ObjectAddress *object)
{
	TupleDesc desc = RelationGetDescr(rel);
	int i;

	for (i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		ObjectAddressSubSet(*object, RelationRelationId, RelationGetRelid(rel), attribute->attnum);
		if (!attribute->attisdropped && type_runs_code(attribute->atttypid))
			return true;
	}
	for (i = 0; desc->constr && i < desc->constr->num_defval; i++)
	{
		object->objectSubId = desc->constr->defval[i].adnum;
		if (text_runs_code(desc->constr->defval[i].adbin))
			return true;
	}
	return false;
}

/* Find a check constraint that could. */
static bool
find_check(Relation rel, ObjectAddress *object)
{
	const TupleConstr *constraints = RelationGetDescr(rel)->constr;
	int i;

	for (i = 0; constraints && i < constraints->num_check; i++)
		if (text_runs_code(constraints->check[i].ccbin))
		{
			ObjectAddressSet(*object, ConstraintRelationId,
							 get_relation_constraint_oid(RelationGetRelid(rel),
														 constraints->check[i].ccname, false));
			return true;
		}
	return false;
}

/* Find an index that could: its expressions, its condition, its operator classes. */
static bool
find_index(Relation rel, ObjectAddress *object)
{
	ListCell *cell;

	foreach(cell, RelationGetIndexList(rel))
		if (entry_runs_code(INDEXRELID, lfirst_oid(cell), Anum_pg_index_indexprs,
							Anum_pg_index_indpred, Anum_pg_index_indclass))
		{
			ObjectAddressSet(*object, RelationRelationId, lfirst_oid(cell));
			return true;
		}
	return false;
}

/* Find extended statistics that could: the planner simplifies their expressions. */
static bool
find_statistics(Relation rel, ObjectAddress *object)
{
	ListCell *cell;

	foreach(cell, RelationGetStatExtList(rel))
		if (entry_runs_code(STATEXTOID, lfirst_oid(cell), Anum_pg_statistic_ext_stxexprs, 0, 0))
		{
			ObjectAddressSet(*object, StatisticExtRelationId, lfirst_oid(cell));
			return true;
		}
	return false;
}

/* Find the first object of a table, not of its partitions, that could. */
static bool
find_object(Oid relid, bool writes, ObjectAddress *object)
{
	Relation rel = relation_open(relid, NoLock);
	bool found = true;

	Assert(compat_relation_locked(relid));
	if (partitioning_runs_code(relid))
		ObjectAddressSet(*object, RelationRelationId, relid);
	else if (writes && rel->rd_rules && rel->rd_rules->numLocks > 0)
		/* it may be replaced by one that could */
		ObjectAddressSet(*object, RewriteRelationId, rel->rd_rules->rules[0]->ruleId);
	else
		found = (writes && find_trigger(rel, object)) || find_check(rel, object) ||
				find_index(rel, object) || find_statistics(rel, object) || find_column(rel, object);
	relation_close(rel, NoLock);
	return found;
}

/*
 * Find the first object of a table, or of one of its partitions, with which its owner could run
 * such code when it is read or, if "writes", written.  Returns its description, or NULL: there is
 * none.  The caller has locked the table; what it finds stays true only if that lock keeps others
 * from adding objects.  RowExclusiveLock does, but for extended statistics, a partition that is
 * attached and an index that is created concurrently.
 */
char *
owner_code_find(Oid relid, bool writes)
{
	Relation rel = relation_open(relid, NoLock);
	List *tables = lcons_oid(relid, relation_members(rel));
	ObjectAddress object;
	ListCell *cell;

	relation_close(rel, NoLock);
	foreach(cell, tables)
		if (find_object(lfirst_oid(cell), writes, &object))
			return getObjectDescription(&object, false);
	return NULL;
}
