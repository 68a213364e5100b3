/*
 * context.c
 *		The line that says which task a message in the server's log belongs to.
 *
 * It is the last line of the CONTEXT of every message that the process logs while it runs a task
 * and writes its outcome.  The row does not need it: context_cut removes it from an error that is
 * written there.
 *
 * This file logs nothing itself.
 */
#include "postgres.h"

/* Without these, libpq-be.h needs headers of libraries that need not be installed. */
#undef ENABLE_GSS
#undef USE_OPENSSL
#undef USE_SSL
#include "libpq/libpq-be.h"
#include "miscadmin.h"

#include "executor/context.h"

/* Longest line: an id, an attempt, and three names. */
#define LINE_MAX_BYTES (5 * NAMEDATALEN)

/* Within any state of the transaction: read no catalog. */
static const char *
format_line(const SharedTask *task, char *line)
{
	snprintf(line, LINE_MAX_BYTES,
			 "pg_task " INT64_FORMAT
			 " of queue \"%s\" in database \"%s\" as role \"%s\", attempt %d",
			 task->run.id, task->queue, MyProcPort->database_name, MyProcPort->user_name,
			 task->run.attempt);
	return line;
}

static void
add_line(void *task)
{
	char line[LINE_MAX_BYTES];

	errcontext("%s", format_line(task, line));
}

/* From here on messages are about this task, until context_end. */
void
context_begin(ErrorContextCallback *callback, const SharedTask *task)
{
	Assert(MyProcPort != NULL);
	callback->callback = add_line;
	callback->arg = unconstify(SharedTask *, task);
	callback->previous = error_context_stack;
	error_context_stack = callback;
}

void
context_end(const ErrorContextCallback *callback)
{
	error_context_stack = callback->previous;
}

/* Cut the line from the context of an error; NULL if nothing is left. */
char *
context_cut(char *context, const SharedTask *task)
{
	char line[LINE_MAX_BYTES];
	size_t length = strlen(format_line(task, line));
	size_t total = context ? strlen(context) : 0;

	if (total < length || strcmp(context + total - length, line) != 0)
		return context;
	if (total == length)
		return NULL;
	if (context[total - length - 1] == '\n')
		context[total - length - 1] = '\0';
	return context;
}
