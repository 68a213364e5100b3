/*
 * short_memory.c
 *		Simulates a shortage of memory: while the file named by SHORT_MEMORY exists, one of
 *		every n allocations fails in the schedulers and executors.  The file contains n.
 *
 * Load it before all other libraries (LD_PRELOAD).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_realloc(void *old, size_t size);

static unsigned int state = 0;

/* Is this a scheduler or an executor?  The name is the first member of its BackgroundWorker. */
static int
is_ours(void)
{
	static const char **entry = NULL;
	static int looked = 0;

	if (!looked)
	{
		looked = 1;
		entry = dlsym(RTLD_DEFAULT, "MyBgworkerEntry");
	}
	return entry && *entry && strncmp(*entry, "pg_task ", 8) == 0 &&
		   strncmp(*entry, "pg_task supervisor", 18) != 0;
}

static int
read_rate(void)
{
	const char *name = getenv("SHORT_MEMORY");
	char text[16] = "";
	int file = name ? open(name, O_RDONLY) : -1;

	if (file < 0)
		return 0;
	if (read(file, text, sizeof(text) - 1) < 0)
		text[0] = '\0';
	close(file);
	return atoi(text);
}

static int
fails(void)
{
	static int busy = 0;
	int saved = errno;
	int result = 0;
	int rate;

	if (busy)
		return 0;
	busy = 1;
	if (is_ours() && (rate = read_rate()) > 0)
	{
		if (state == 0)
			state = (unsigned int) getpid();
		result = rand_r(&state) % rate == 0;
	}
	busy = 0;
	errno = result ? ENOMEM : saved;
	return result;
}

void *
malloc(size_t size)
{
	return fails() ? NULL : __libc_malloc(size);
}

void *
realloc(void *old, size_t size)
{
	return fails() ? NULL : __libc_realloc(old, size);
}
