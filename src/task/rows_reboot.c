/*
 * rows_reboot.c
 *		The statement on rows that wait for the next start of the server (cron "@reboot").
 *
 * Such a row is planned for "infinity".  Its anchor is the time at which that server was started
 * under which it was planned: it identifies a start, and is not compared with any clock.
 */
#include "postgres.h"

#include "task/rows.h"
#include "task/rows_sql.h"
#include "task/statement.h"

/* clang-format off */
static const Statement plan_reboot = {STATEMENT_REBOOT,
	"UPDATE {rows} AS t"
	"   SET dt = $now, anchor = $started"
	"  FROM unnest($ids) AS a (id)"
	" WHERE t.id = a.id AND t.state = $state AND t.waits IS NULL AND t.dt = 'infinity'"
	"   AND t.anchor IS DISTINCT FROM $started"
	"   AND lower(btrim(t.cron, E' \\t\\n\\r') COLLATE \"C\") = '@reboot'"};
/* clang-format on */

/*
 * Plan for "now" those of these waiting rows that wait for a start of the server after the one
 * under which they were planned.  Waits for rows that somebody has locked.
 */
void
rows_plan_reboot(const TaskTable *table, const TaskPlace *places, int count, TimestampTz now,
				 TimestampTz started)
{
	StatementArgs args;
	Datum *ids;
	int i;

	statement_begin(&args);
	ids = arg_array(&args, "ids", INT8OID, count);
	for (i = 0; i < count; i++)
		ids[i] = Int64GetDatum(places[i].id);
	arg_text(&args, "state", "PLAN");
	arg_timestamp(&args, "now", now);
	arg_timestamp(&args, "started", started);
	statement_execute(&plan_reboot, table, &args);
	statement_end();
}
