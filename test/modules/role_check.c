/*
 * role_check.c
 *		Unit test of what the scheduler remembers of roles, run in an ordinary backend.
 *
 * src/scheduler/role_state.c is plain memory: it is compiled into this library.  role_check(roles)
 * serves so many roles one after the other, some of which keep failing, and returns how many are
 * remembered at most; negative: the line of what does not hold.
 */
#include "postgres.h"

#include "fmgr.h"

#include "scheduler/role_state.c"

PG_MODULE_MAGIC;

/* Return from the check unless this holds. */
#define CHECK(condition)             \
	do                               \
	{                                \
		if (!(condition))            \
			PG_RETURN_INT32(-__LINE__); \
	} while (0)

PG_FUNCTION_INFO_V1(role_check);
Datum
role_check(PG_FUNCTION_ARGS)
{
	int count = PG_GETARG_INT32(0);
	MonoTime now = {INT64CONST(1000000000000)};
	long most = 0;
	int role;

	role_state_create();
	for (role = 1; role <= count; role++)
	{
		now = clock_plus_ms(now, ROLE_MEMORY_MS / 1000);
		CHECK(role_may_connect(role, now));
		CHECK(role_last_granted(role).us == 0);
		role_granted(role, now);
		role_connected(role);
		CHECK(role_last_granted(role).us == now.us);
		/* the last 900 are remembered */
		CHECK(role <= 900 || role_last_granted(role - 900).us != 0);
		most = Max(most, hash_get_num_entries(roles));
	}

	/* what was not served is known only if it failed */
	CHECK(role_may_connect(count + 1, now) && hash_get_num_entries(roles) <= most);
	role_connection_failed(count + 1, now);
	CHECK(!role_may_connect(count + 1, now));
	CHECK(role_connections_until(now).us == clock_plus_ms(now, RETRY_MS).us);
	PG_RETURN_INT32((int32) most);
}
