/*
 * port.c
 *		The connection to a client that a background process does not have.
 *
 * Functions that report on the connection read its description (MyProcPort) without checking that
 * there is one.  This file makes one: of a Unix-domain socket, without encryption or
 * authentication.  Nothing can be read from that socket.
 */
#include "postgres.h"

/*
 * Without these, libpq-be.h needs headers of libraries on which the server's development package
 * does not depend.  The fields of Port that they add are at its end, after all that is set here.
 */
#undef ENABLE_GSS
#undef USE_OPENSSL
#undef USE_SSL
#include "access/xact.h"
#include "commands/dbcommands.h"
#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "shared/worker.h"

/* More than the server's Port can be, with the fields that are left out here. */
#define PORT_SIZE (2 * sizeof(Port) + 1024)

/*
 * Describe a connection without a client.  A process calls this once, when it is connected.  The
 * server's log shows the user and the database.
 */
void
port_describe(void)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	Port *port = palloc0(PORT_SIZE);

	Assert(OidIsValid(MyDatabaseId) && MyProcPort == NULL && !IsTransactionState());
	/* for this address family the server makes no system call on the socket */
	port->laddr.addr.ss_family = port->raddr.addr.ss_family = AF_UNIX;
	port->laddr.salen = port->raddr.salen = sizeof(sa_family_t);
	port->sock = PGINVALID_SOCKET;
	port->proto = PG_PROTOCOL_LATEST;
	port->remote_host = pstrdup("[local]");
	port->remote_port = pstrdup("");
	StartTransactionCommand();
	port->database_name = MemoryContextStrdup(TopMemoryContext, get_database_name(MyDatabaseId));
	port->user_name =
		MemoryContextStrdup(TopMemoryContext, GetUserNameFromId(GetSessionUserId(), false));
	CommitTransactionCommand();
	MyProcPort = port;
	MemoryContextSwitchTo(old);
}

/* The name of the database, as it was when the process connected.  Needs no transaction. */
const char *
port_database(void)
{
	return MyProcPort->database_name;
}
