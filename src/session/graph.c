/*
 * graph.c
 *		pg_task_graph: the tasks of a flow as the text of a Mermaid flowchart.
 *
 * It shows the rows that the caller could SELECT.  What comes from a row is escaped, so that it is
 * text to whatever draws the chart.
 *
 * This file changes nothing.
 */
#include "postgres.h"

#include <ctype.h>

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "session/table_access.h"

PGDLLEXPORT Datum pg_task_graph(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(pg_task_graph);

/*
 * The bounds of a chart.  Mermaid draws up to 50,000 characters and 500 arrows, unless it is told
 * otherwise, and a chart of more is not readable.
 */
#define GRAPH_TASKS 1000
#define GRAPH_ARROWS 500
#define GRAPH_TASKS_SIZE 32000 /* bytes, when no other task is added */
#define GRAPH_SIZE 48000	   /* the same for arrows */

/* The columns that are read, in this order. */
typedef enum GraphColumn
{
	GRAPH_ID = 1,
	GRAPH_PARENT,
	GRAPH_STEP,
	GRAPH_QUEUE,
	GRAPH_REQUEST,
	GRAPH_STATE,
	GRAPH_STATUS,
	GRAPH_ERROR,
	GRAPH_RULE,
	GRAPH_AFTER
} GraphColumn;

/* clang-format off */

/*
 * Texts are cut here, so a row costs little memory.  Times of which nobody draws a chart are left
 * out, because who may UPDATE a row may write some into it whose difference is out of range.
 */
static const char graph_sql[] =
	"SELECT t.id, t.parent, left(t.step, 60), nullif(left(t.queue, 60), 'default'),"
	"       left(t.request, 40) || CASE WHEN length(t.request) > 40 THEN '...' ELSE '' END,"
	"       t.state,"
	"       concat_ws(', ',"
	"           CASE WHEN t.state = 'PLAN' AND t.waits IS NOT NULL THEN 'PLAN, waits'"
	"                WHEN t.state = 'PLAN' THEN 'PLAN for ' || date_trunc('second', t.dt)"
	"                WHEN t.state = 'WORK' THEN 'WORK since ' || date_trunc('second', t.start)"
	"                ELSE concat_ws(' ', left(t.state, 4),"
	"                               date_trunc('second', coalesce(t.start, t.stop))) END,"
	"           CASE WHEN t.state NOT IN ('PLAN', 'WORK') AND t.start > '1970-01-01 00:00+00'"
	"                     AND t.stop < '9999-01-01 00:00+00' AND t.stop >= t.start"
	"                THEN CASE WHEN t.stop - t.start < interval '10 s'"
	"                          THEN ceil(extract(epoch FROM t.stop - t.start) * 1000) || ' ms'"
	"                          ELSE date_trunc('second', t.stop - t.start)::text END END,"
	"           CASE WHEN t.attempt > 1 THEN 'attempt ' || t.attempt END),"
	"       CASE WHEN t.state IN ('FAIL', 'GONE') THEN left(t.error, 60) END,"
	"       nullif(left(t.rule, 20), 'done'), "
	"       (array_remove(t.after, NULL))[:" CppAsString2(GRAPH_ARROWS) "]"
	"  FROM %s AS t WHERE t.flow = $1 ORDER BY t.id"
	" LIMIT " CppAsString2(GRAPH_TASKS) " + 1";

/* How the states look.  Each has a name that is a class of the chart. */
static const struct
{
	const char *state;
	const char *style;
} styles[] = {
	{"PLAN", "fill:#ffffff,stroke:#888888,color:#000000"},
	{"WORK", "fill:#cfe2ff,stroke:#0a58ca,color:#000000"},
	{"DONE", "fill:#d1e7dd,stroke:#146c43,color:#000000"},
	{"FAIL", "fill:#f8d7da,stroke:#b02a37,color:#000000"},
	{"STOP", "fill:#ffe5d0,stroke:#ca6510,color:#000000"},
	{"GONE", "fill:#e9ecef,stroke:#888888,color:#000000,stroke-dasharray:4"},
};

/* clang-format on */

/* A chart that is being written, from the rows that the last statement has read. */
typedef struct Graph
{
	StringInfoData text;
	uint64 count;	/* rows that are shown */
	int arrows;		/* that are drawn */
	bool truncated; /* not all tasks or arrows are shown */
} Graph;

/* ---- the values of a row ---- */

static char *
text_of(uint64 row, GraphColumn which)
{
	return SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, which);
}

static Datum
value_of(uint64 row, GraphColumn which, bool *isnull)
{
	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, which, isnull);
}

static int64
id_of(uint64 row)
{
	bool isnull;

	return DatumGetInt64(value_of(row, GRAPH_ID, &isnull));
}

/* Is this the id of a task that is shown?  The rows are sorted by it. */
static bool
is_shown(const Graph *graph, int64 id)
{
	uint64 low = 0;
	uint64 high = graph->count;

	while (low < high)
	{
		uint64 middle = low + (high - low) / 2;

		if (id_of(middle) < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low < graph->count && id_of(low) == id;
}

/* ---- the parts of the chart ---- */

/*
 * Does this byte of a text stand for itself? Letters, digits, some others, and every byte of a
 * character that is not ASCII do.  What is left means something to Mermaid, which also reads labels
 * as Markdown: quotes, brackets, "%%", "#", "<", lists, emphasis, links.
 */
static bool
is_plain(const char *text, const char *byte)
{
	unsigned char here = *byte;
	unsigned char before = byte > text ? byte[-1] : ' ';
	unsigned char after = byte[1];

	if (IS_HIGHBIT_SET(here) || isalnum(here) || strchr(" ,:=()", here))
		return true;
	if (here == '/')
		return before != '/' && after != '/';
	return strchr("-+_", here) && isalnum(before) && isalnum(after);
}

/* Append a text for a place between quotes. */
static void
append_escaped(StringInfo chart, const char *text)
{
	const char *byte;

	for (byte = text; *byte; byte++)
	{
		/* it would become the picture of an icon, also if it were escaped */
		if (strncmp(byte, ":fa-", 4) == 0)
			appendStringInfoChar(chart, ' ');
		if (is_plain(text, byte))
			appendStringInfoChar(chart, *byte);
		else if ((unsigned char) *byte < ' ' || *byte == 0x7f)
			appendStringInfoChar(chart, ' ');
		else
			appendStringInfo(chart, "#%d;", *byte);
	}
}

/* Append the name of a node.  A minus sign would be read as an arrow. */
static void
append_node(StringInfo chart, int64 id)
{
	if (id < 0)
		appendStringInfo(chart, "tm" UINT64_FORMAT, 0 - (uint64) id);
	else
		appendStringInfo(chart, "t" INT64_FORMAT, id);
}

/* Append one more line of a label, if there is a text. */
static void
append_line(StringInfo chart, const char *text)
{
	if (text == NULL)
		return;
	appendStringInfoString(chart, "<br/>");
	append_escaped(chart, text);
}

/* Append a task: its name, what it runs, where, and how far it is. */
static void
append_task(StringInfo chart, uint64 row)
{
	char *step = text_of(row, GRAPH_STEP);
	char *queue = text_of(row, GRAPH_QUEUE);
	char *request = text_of(row, GRAPH_REQUEST);
	char *state = text_of(row, GRAPH_STATE);
	int i;

	appendStringInfoString(chart, "    ");
	append_node(chart, id_of(row));
	appendStringInfoString(chart, "[\"");
	if (step)
	{
		append_escaped(chart, step);
		appendStringInfoString(chart, ", ");
	}
	appendStringInfo(chart, "task " INT64_FORMAT, id_of(row));
	append_line(chart, queue ? psprintf("%s: %s", queue, request) : request);
	append_line(chart, text_of(row, GRAPH_STATUS));
	append_line(chart, text_of(row, GRAPH_ERROR));
	appendStringInfoString(chart, "\"]");
	for (i = 0; state && i < (int) lengthof(styles); i++)
		if (strcmp(styles[i].state, state) == 0)
			appendStringInfo(chart, ":::%s", state);
	appendStringInfoChar(chart, '\n');
}

/* Is there room for one more arrow?  If not, the chart is truncated. */
static bool
has_room(Graph *graph)
{
	if (graph->arrows < GRAPH_ARROWS && graph->text.len < GRAPH_SIZE)
		return true;
	graph->truncated = true;
	return false;
}

/*
 * Append an arrow from a task to that of a row.  One that is not shown, because it is of another
 * flow, gone, hidden or not among the first, is a number.
 */
static void
append_arrow(Graph *graph, int64 from, const char *arrow, uint64 row)
{
	StringInfo chart = &graph->text;

	appendStringInfoString(chart, "    ");
	append_node(chart, from);
	if (!is_shown(graph, from))
		appendStringInfo(chart, "[\"task " INT64_FORMAT "\"]", from);
	appendStringInfo(chart, " %s ", arrow);
	append_node(chart, id_of(row));
	appendStringInfoChar(chart, '\n');
	graph->arrows++;
}

/* The arrow of what a row waits for, with its rule. */
static char *
arrow_of(uint64 row)
{
	char *rule = text_of(row, GRAPH_RULE);
	StringInfoData arrow;

	initStringInfo(&arrow);
	appendStringInfoString(&arrow, "-->");
	if (rule)
	{
		appendStringInfoString(&arrow, "|\"");
		append_escaped(&arrow, rule);
		appendStringInfoString(&arrow, "\"|");
	}
	return arrow.data;
}

/*
 * Append the arrows of a row: from the tasks for which it waits and, dotted, from the one that has
 * inserted it, if that is shown and the row does not wait for it.
 */
static void
append_arrows(Graph *graph, uint64 row)
{
	bool isnull;
	Datum after = value_of(row, GRAPH_AFTER, &isnull);
	ArrayType *array = isnull ? NULL : DatumGetArrayTypeP(after);
	int count = array ? ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)) : 0;
	int64 parent = DatumGetInt64(value_of(row, GRAPH_PARENT, &isnull));
	bool inserted = !isnull && is_shown(graph, parent);
	const char *arrow = arrow_of(row);
	int i;

	if (array && array_contains_nulls(array)) /* a row that has bypassed the trigger */
		count = 0;
	for (i = 0; i < count && has_room(graph); i++)
	{
		int64 from = ((int64 *) ARR_DATA_PTR(array))[i];

		append_arrow(graph, from, arrow, row);
		inserted &= from != parent;
	}
	if (inserted && has_room(graph))
		append_arrow(graph, parent, "-.->", row);
}

/* Write the chart of the rows that the last statement has read. */
static void
write_graph(Graph *graph)
{
	StringInfo chart = &graph->text;
	uint64 row;
	int i;

	appendStringInfoString(chart, "flowchart TD\n");
	for (row = 0; row < SPI_processed && row < GRAPH_TASKS && chart->len < GRAPH_TASKS_SIZE; row++)
		append_task(chart, row);
	graph->count = row;
	graph->truncated = row < SPI_processed;
	for (row = 0; row < graph->count; row++)
		append_arrows(graph, row);
	if (graph->truncated)
		appendStringInfo(
			chart, "    more[\"the first " UINT64_FORMAT " tasks: there is more than is shown\"]\n",
			graph->count);
	for (i = 0; i < (int) lengthof(styles); i++)
		appendStringInfo(chart, "%s    classDef %s %s", i > 0 ? "\n" : "", styles[i].state,
						 styles[i].style);
}

/*
 * pg_task_graph(flow): the tasks of a flow as a Mermaid flowchart.  NULL if the caller sees none of
 * it.
 */
Datum
pg_task_graph(PG_FUNCTION_ARGS)
{
	static const Oid columns[] = {INT8OID, INT8OID, TEXTOID, TEXTOID,	   TEXTOID,	  TEXTOID,
								  TEXTOID, TEXTOID, TEXTOID, INT8ARRAYOID, InvalidOid};
	TableAccess access = table_access_open(ACCESS_ROWS);
	AccessStatement read = {.sql = psprintf(graph_sql, access.rows),
							.read_only = true,
							.count = 1,
							.types = (const Oid[]){TEXTOID},
							.values = (const Datum[]){PG_GETARG_DATUM(0)}};
	Graph graph = {0};
	bool found;

	initStringInfo(&graph.text); /* in the memory of the caller */
	SPI_connect();
	found = table_access_read(&access, &read, columns) > 0;
	if (found)
		write_graph(&graph);
	SPI_finish();
	if (!found)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text_with_len(graph.text.data, graph.text.len));
}
