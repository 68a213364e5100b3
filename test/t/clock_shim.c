/*
 * clock_shim.c
 *		Preloaded into a server, shifts its wall clock by the number of microseconds that is
 *		in the file CLOCK_SHIM_FILE at that moment.  Each time that a process reads
 *		CLOCK_MONOTONIC, so many microseconds pass for it as the second number there says, as if it
 *		had to wait for a processor.
 *
 * pg_ctl, which starts the server, keeps the true clock: it waits for a server that says that it was
 * started later.  So a clock that is not behind may be set meanwhile.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset = NULL;
static int64_t passed = 0;

__attribute__((constructor)) static void
attach(void)
{
	const char *name = getenv("CLOCK_SHIM_FILE");
	int is_server = strcmp(program_invocation_short_name, "pg_ctl") != 0;
	int file = name && is_server ? open(name, O_RDONLY) : -1;
	void *memory = MAP_FAILED;

	if (file >= 0)
		memory = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
	if (memory != MAP_FAILED)
		offset = memory;
	if (file >= 0)
		close(file);
}

int
clock_gettime(clockid_t clock, struct timespec *result)
{
	int rc = (int) syscall(SYS_clock_gettime, clock, result);
	int64_t us;

	if (rc != 0 || offset == NULL ||
		(clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE && clock != CLOCK_MONOTONIC))
		return rc;
	us = (int64_t) result->tv_sec * 1000000 + result->tv_nsec / 1000 +
		 (clock == CLOCK_MONOTONIC ? passed += offset[1] : offset[0]);
	result->tv_sec = us / 1000000;
	result->tv_nsec = us % 1000000 * 1000 + result->tv_nsec % 1000;
	return 0;
}

int
gettimeofday(struct timeval *restrict result, void *restrict zone)
{
	struct timespec now;
	int rc = clock_gettime(CLOCK_REALTIME, &now);

	(void) zone;
	result->tv_sec = now.tv_sec;
	result->tv_usec = now.tv_nsec / 1000;
	return rc;
}

time_t
time(time_t *result)
{
	struct timespec now;

	(void) clock_gettime(CLOCK_REALTIME, &now);
	if (result)
		*result = now.tv_sec;
	return now.tv_sec;
}
