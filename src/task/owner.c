/*
 * owner.c
 *		Acts as the owner of the task table, with the owner's rights and under fixed settings.
 *
 * The scheduler prepares the table and writes rows as its owner, an executor reads and writes the
 * row of its task.  No code of a task runs in between.
 *
 * This file knows neither the table nor its rows.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/guc.h"
#include "utils/rls.h"

#include "task/owner.h"

/*
 * Does this process act as the owner now?  The triggers on the table ask, at any depth below the
 * statement that fires them.
 */
static bool acting = false;

/*
 * Fire all pending deferred triggers as the current user, including those that are queued
 * meanwhile, until none is left.  Then do the equivalent of SET CONSTRAINTS ALL IMMEDIATE: no more
 * triggers are deferred in this transaction.
 */
void
owner_fire_deferred(void)
{
	ConstraintsSetStmt *all = makeNode(ConstraintsSetStmt);

	AfterTriggerFireDeferred();
	AfterTriggerSetState(all);
	pfree(all);
}

/*
 * Have names mean what they mean to us, until the end of the current level of settings: by a
 * search_path that nobody else can put objects into.
 */
void
owner_pin_path(void)
{
	static const char path[] = "pg_catalog, pg_temp";

	if (strcmp(namespace_search_path, path) != 0)
		(void) set_config_option("search_path", path, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
								 true, 0, false);
}

/* Act as "user" in a security-restricted context, at a new level of settings. */
static void
restrict_user(Oid user, OwnerScope *scope)
{
	GetUserIdAndSecContext(&scope->user, &scope->context);
	SetUserIdAndSecContext(user, scope->context | SECURITY_LOCAL_USERID_CHANGE |
									 SECURITY_RESTRICTED_OPERATION | SECURITY_NOFORCE_RLS);
	scope->nest_level = NewGUCNestLevel();
}

/*
 * Act as "user" in a security-restricted context, at a new level of settings, with our search_path.
 * Row security does not apply to the user's own tables, even with FORCE ROW LEVEL SECURITY.  The
 * caller ends the level, and restores the user; after an error, the end of the transaction does.
 */
void
owner_restrict(Oid user, OwnerScope *scope)
{
	restrict_user(user, scope);
	owner_pin_path();
}

/*
 * Act as before owner_restrict, with the settings that this process had then.  A caller that has
 * restored these, and has committed as the owner, has set the level to 0.
 */
void
owner_restrict_end(const OwnerScope *scope)
{
	if (scope->nest_level > 0)
		AtEOXact_GUC(false, scope->nest_level);
	SetUserIdAndSecContext(scope->user, scope->context);
}

/*
 * Act as the owner, as owner_restrict says but for search_path, until owner_return.  After an
 * error, the caller calls owner_abandon.
 *
 * What looks for names, or runs code that may, calls owner_pin_path first: every statement does.  A
 * row that is written without one is written for every task, and search_path would be the most
 * expensive part of the change of the user.
 */
void
owner_become(Oid user, OwnerScope *scope)
{
	Assert(MyBackendType == B_BG_WORKER);

	/*
	 * the server fires no deferred triggers in such a context, and pending ones are not the
	 * owner's
	 */
	owner_fire_deferred();
	owner_become_in_session(user, scope);
}

/*
 * The same in a user's session, in which deferred triggers stay pending: they fire at the end of
 * its transaction, as its user.
 */
void
owner_become_in_session(Oid user, OwnerScope *scope)
{
	Assert(IsTransactionState());
	Assert(!acting);
	Assert(OidIsValid(user));
	acting = true;
	restrict_user(user, scope);
	/* "off" raises an error for each policy that would hide a row */
	if (!row_security)
		(void) set_config_option("row_security", "on", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
								 true, 0, false);
}

/* The same after owner_become. */
void
owner_return(const OwnerScope *scope)
{
	Assert(acting);
	owner_restrict_end(scope);
	acting = false;
}

/*
 * The transaction has failed.  The server restores the user and the settings; reset what this
 * process keeps besides.  Does nothing if this process did not act as the owner.
 */
void
owner_abandon(void)
{
	acting = false;
}

/* Does this process act as the owner now, and write rows on behalf of pg_task? */
bool
owner_acts(void)
{
	return acting;
}
