/*
 * role_state.h
 *		What the scheduler remembers of each role.
 */
#ifndef PG_TASK_ROLE_STATE_H
#define PG_TASK_ROLE_STATE_H

#include "postgres.h"

#include "shared/clock.h"

extern void role_state_create(void);

extern void role_connected(Oid role);
extern void role_connection_failed(Oid role, MonoTime now);
extern bool role_may_connect(Oid role, MonoTime now);
extern MonoTime role_connections_until(MonoTime now);

extern void role_granted(Oid role, MonoTime now);
extern MonoTime role_last_granted(Oid role);

#endif /* PG_TASK_ROLE_STATE_H */
