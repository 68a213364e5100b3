/*
 * trigger_order.c
 *		Which trigger checks a new row: pg_task_bound before, or pg_task_planned after the INSERT.
 *
 * After the row is inserted, it is what it will be, but a trigger then costs three times as much:
 * the server parses its condition for each statement, remembers an event for each row, and reads
 * the row again.  pg_task_bound sees the same row if no trigger that may change it comes later.
 * Then it takes the work over: it has pg_task_planned not fire for the INSERT of this statement.
 *
 * This file looks at no row.
 */
#include "postgres.h"

#include "catalog/pg_namespace.h"
#include "catalog/pg_trigger.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "session/trigger_row.h"

/* Is this a trigger FOR EACH ROW that fires on INSERT, at this time? */
static bool
fires_on_insert(const Trigger *trigger, int timing)
{
	return TRIGGER_TYPE_MATCHES(trigger->tgtype, TRIGGER_TYPE_ROW, timing, TRIGGER_TYPE_INSERT);
}

/* Is this our trigger?  Nobody but a superuser creates functions in pg_catalog. */
static bool
is_planned_trigger(const Trigger *trigger)
{
	char *function;

	if (!fires_on_insert(trigger, TRIGGER_TYPE_AFTER) ||
		trigger->tgenabled != TRIGGER_FIRES_ALWAYS ||
		get_func_namespace(trigger->tgfoid) != PG_CATALOG_NAMESPACE)
		return false;
	function = get_func_name(trigger->tgfoid);
	return function && strcmp(function, "pg_task_planned") == 0;
}

/* Is a column of this name one of ours? */
static bool
is_task_column(const char *name)
{
	TaskColumn which;

	for (which = 0; which < TASK_COLUMNS; which++)
		if (strcmp(task_columns[which].name, name) == 0)
			return true;
	return false;
}

/* Does the server compute one of our columns after the last trigger?  Some may be missing. */
static bool
has_generated_column(Relation rel)
{
	TupleDesc desc = RelationGetDescr(rel);
	int i;

	for (i = 0; i < desc->natts; i++)
		if (TupleDescAttr(desc, i)->attgenerated &&
			is_task_column(NameStr(TupleDescAttr(desc, i)->attname)))
			return true;
	return false;
}

/* Return the place of a trigger among these. */
static int
place_of(const TriggerDesc *triggers, Oid trigger)
{
	int i;

	for (i = 0; i < triggers->numtriggers; i++)
		if (triggers->triggers[i].tgoid == trigger)
			break;
	return i;
}

/*
 * Return the trigger pg_task_planned, if the row stays as pg_task_bound, which is at this place,
 * leaves it; else NULL.  The triggers are in the order in which they fire.
 */
static const Trigger *
find_planned(const TriggerDesc *triggers, int place)
{
	int i;

	for (i = place + 1; i < triggers->numtriggers; i++)
		if (fires_on_insert(&triggers->triggers[i], TRIGGER_TYPE_BEFORE))
			return NULL;
	for (i = place + 1; i < triggers->numtriggers; i++)
		if (is_planned_trigger(&triggers->triggers[i]))
			return &triggers->triggers[i];
	return NULL;
}

/*
 * Find out how many places after pg_task_bound ("mine") the trigger pg_task_planned comes.  This
 * looks at a copy: looking up a function may tell that others have changed the table, and then the
 * server frees the triggers that "rel" had.
 */
static void
find_order(Relation rel, const Trigger *mine)
{
	TriggerDesc *triggers;
	const Trigger *planned;
	int place;

	trigger_columns.planned_after = 0;
	trigger_columns.order_known = true;
	if (mine->tgqual || mine->tgenabled != TRIGGER_FIRES_ALWAYS || has_generated_column(rel))
		return;
	triggers = CopyTriggerDesc(rel->trigdesc);
	if (triggers == NULL)
		return;
	place = place_of(triggers, mine->tgoid);
	planned = find_planned(triggers, place);
	if (planned)
	{
		trigger_columns.planned_after = planned - &triggers->triggers[place];
		trigger_columns.planned = planned->tgoid;
	}
	FreeTriggerDesc(triggers);
}

/*
 * Has this transaction perhaps created, dropped or renamed triggers of the table?  The server
 * allows it while a statement inserts rows, and others cannot do it then.
 */
static bool
may_have_changed(Relation rel)
{
	return CheckRelationLockedByMe(rel, ShareRowExclusiveLock, true);
}

/*
 * Called by pg_task_bound, for each row.  Does it do the work of pg_task_planned?  If so, that does
 * not fire for this INSERT.  The triggers that the server has given to this statement are a copy
 * which belongs to the statement, and all of its rows are given the same one: what is changed in it
 * says for each of them who does the work.  So what was found once stays, whatever becomes of the
 * triggers of the table; it is noted in our own one, which cannot be deferred.  The place is known
 * for the triggers that the table has now: it is that in the copy only if they are the same.
 */
bool
trigger_takes_over(const TriggerData *data)
{
	const TriggerDesc *triggers = data->tg_relation->trigdesc;
	Trigger *mine = data->tg_trigger;
	Trigger *planned;

	if (triggers && mine >= triggers->triggers && mine < triggers->triggers + triggers->numtriggers)
		return false;
	if (mine->tginitdeferred)
		return true;
	trigger_know_table(data->tg_relation);
	if (!trigger_columns.order_known)
	{
		if (triggers == NULL || may_have_changed(data->tg_relation))
			return false;
		find_order(data->tg_relation, mine);
	}
	planned = mine + trigger_columns.planned_after;
	if (planned == mine || planned->tgoid != trigger_columns.planned)
		return false;
	planned->tgtype &= ~TRIGGER_TYPE_INSERT;
	mine->tginitdeferred = true;
	return true;
}
