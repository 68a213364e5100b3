/*
 * running.c
 *		What the running task of this process is given: the executor says so when the request
 *		begins, and the functions that SQL calls read it.
 *
 * Parallel workers of the task do not have it.  This file reads no row and writes none.
 */
#include "postgres.h"

#include "task/running.h"

/* Static, because the functions that read it are called by the request. */
static struct
{
	const Jsonb *input; /* the column of the row; NULL for NULL, and outside of a task */
} running;

/* A request begins.  Its input, or NULL, must live until running_end. */
void
running_begin(const Jsonb *input)
{
	running.input = input;
}

/* The request has ended, or has failed. */
void
running_end(void)
{
	running.input = NULL;
}

/* The input of the running task; NULL for NULL, and outside of a task. */
const Jsonb *
running_input(void)
{
	return running.input;
}
