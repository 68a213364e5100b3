/*
 * report.c
 *		Causes that are logged once while they last.
 *
 * A process calls report_due each time it finds a cause, and logs it if that returns true.  It says
 * when the cause has ended, or ends all that it has not found since it last did so.
 *
 * Memory of one process.  This file logs nothing.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "shared/clock.h"
#include "shared/report.h"

/* Causes are compared up to this length (bytes). */
#define CAUSE_MAX 1024

typedef struct ReportedCause
{
	slist_node node;
	MonoTime since;
	bool logged;
	bool seen; /* since the last report_end_unseen */
	char text[FLEXIBLE_ARRAY_MEMBER];
} ReportedCause;

static ReportedCause *
find_cause(Reports *reports, const char *text)
{
	slist_iter iter;

	slist_foreach(iter, &reports->causes)
	{
		ReportedCause *cause = slist_container(ReportedCause, node, iter.cur);

		if (strncmp(cause->text, text, CAUSE_MAX) == 0)
			return cause;
	}
	return NULL;
}

/* One allocation, so that the set is whole when memory runs out. */
static ReportedCause *
add_cause(Reports *reports, const char *text, MonoTime now)
{
	size_t length = strnlen(text, CAUSE_MAX);
	ReportedCause *cause =
		MemoryContextAllocZero(TopMemoryContext, offsetof(ReportedCause, text) + length + 1);

	memcpy(cause->text, text, length);
	cause->since = now;
	slist_push_head(&reports->causes, &cause->node);
	reports->count++;
	return cause;
}

/* Remove the cause that the iteration has reached. */
static void
remove_cause(Reports *reports, slist_mutable_iter *iter)
{
	ReportedCause *cause = slist_container(ReportedCause, node, iter->cur);

	slist_delete_current(iter);
	reports->count--;
	pfree(cause);
}

/*
 * This cause exists now.  Is the caller to log it?  Once, when it has lasted for "patience"
 * milliseconds.
 */
bool
report_due(Reports *reports, const char *text, int patience)
{
	MonoTime now = clock_mono();
	ReportedCause *cause = find_cause(reports, text);

	if (cause == NULL)
		cause = add_cause(reports, text, now);
	cause->seen = true;
	if (cause->logged || !clock_exceeds(cause->since, now, patience))
		return false;
	cause->logged = true;
	return true;
}

/* This cause has ended.  It need not be known. */
void
report_end(Reports *reports, const char *text)
{
	slist_mutable_iter iter;

	slist_foreach_modify(iter, &reports->causes)
		if (strncmp(slist_container(ReportedCause, node, iter.cur)->text, text, CAUSE_MAX) == 0)
			remove_cause(reports, &iter);
}

/* The causes have ended that report_due was not called for since the last call. */
void
report_end_unseen(Reports *reports)
{
	slist_mutable_iter iter;

	slist_foreach_modify(iter, &reports->causes)
	{
		ReportedCause *cause = slist_container(ReportedCause, node, iter.cur);

		if (!cause->seen)
			remove_cause(reports, &iter);
		else
			cause->seen = false;
	}
}

/* All causes have ended. */
void
report_end_all(Reports *reports)
{
	slist_mutable_iter iter;

	slist_foreach_modify(iter, &reports->causes)
		remove_cause(reports, &iter);
}
