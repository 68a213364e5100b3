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

/* End this cause, which need not be known; NULL: all, or those that were not seen. */
static void
end_causes(Reports *reports, const char *text, bool unseen)
{
	slist_mutable_iter iter;

	slist_foreach_modify(iter, &reports->causes)
	{
		ReportedCause *cause = slist_container(ReportedCause, node, iter.cur);

		if ((unseen && cause->seen) || (text && strncmp(cause->text, text, CAUSE_MAX) != 0))
		{
			cause->seen &= !unseen;
			continue;
		}
		slist_delete_current(&iter);
		reports->count--;
		pfree(cause);
	}
}

void
report_end(Reports *reports, const char *text)
{
	end_causes(reports, text, false);
}

/* The causes have ended that report_due was not called for since the last call. */
void
report_end_unseen(Reports *reports)
{
	end_causes(reports, NULL, true);
}
