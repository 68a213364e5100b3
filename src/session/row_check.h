/*
 * row_check.h
 *		What a user may write into a row of the task table.  Each check raises an error.
 */
#ifndef PG_TASK_ROW_CHECK_H
#define PG_TASK_ROW_CHECK_H

#include "postgres.h"

#include "miscadmin.h"
#include "pgtime.h"
#include "utils/acl.h"
#include "utils/rel.h"

#include "session/trigger_row.h"
#include "task/cron.h"

/* Has the current user the rights of the table's owner? */
static inline bool
row_check_owner(Relation rel)
{
	return has_privs_of_role(GetUserId(), trigger_table_owner(rel));
}

extern Cron row_check_cron(const char *text, const char *hint);
extern pg_tz *row_check_zone(const char *name);
extern void row_check_forbid(TaskColumn which, const char *hint);
extern void row_check(const TriggerRow *old, const TriggerRow *new);
extern void row_check_until(const TriggerRow *old, const TriggerRow *new);

#endif /* PG_TASK_ROW_CHECK_H */
