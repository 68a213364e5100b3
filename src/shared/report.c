/*
 * report.c
 *		Causes that are logged once while they last.
 *
 * A process calls report_due each time it finds a cause, and logs it if that returns true.  It says
 * when all have ended, or those that it has not found since it last did so.
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
	bool seen; /* since the unseen ones were last ended */
	char text[FLEXIBLE_ARRAY_MEMBER];
} ReportedCause;

/*
 * This cause exists now.  Is the caller to log it?  Once, when it has lasted for "patience"
 * milliseconds.
 */
bool
report_due(Reports *reports, const char *text, int patience)
{
	size_t length = strnlen(text, CAUSE_MAX);
	MonoTime now = clock_mono();
	ReportedCause *cause = NULL;
	slist_iter iter;

	slist_foreach(iter, &reports->causes)
	{
		cause = slist_container(ReportedCause, node, iter.cur);
		if (strncmp(cause->text, text, CAUSE_MAX) == 0)
			break;
		cause = NULL;
	}
	if (cause == NULL)
	{
		/* one allocation, so that the set is whole when memory runs out */
		cause =
			MemoryContextAllocZero(TopMemoryContext, offsetof(ReportedCause, text) + length + 1);
		memcpy(cause->text, text, length);
		cause->since = now;
		slist_push_head(&reports->causes, &cause->node);
		reports->count++;
	}
	cause->seen = true;
	if (cause->logged || !clock_exceeds(cause->since, now, patience))
		return false;
	cause->logged = true;
	return true;
}

/* All causes have ended; or, if "unseen", those that report_due was not called for since. */
void
report_end(Reports *reports, bool unseen)
{
	slist_mutable_iter iter;

	slist_foreach_modify(iter, &reports->causes)
	{
		ReportedCause *cause = slist_container(ReportedCause, node, iter.cur);

		if (unseen && cause->seen)
		{
			cause->seen = false;
			continue;
		}
		slist_delete_current(&iter);
		reports->count--;
		pfree(cause);
	}
}
