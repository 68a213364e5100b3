/*
 * port.c
 *		The connection to a client that a background process does not have.
 *
 * Functions that ask about the connection expect a description of one (MyProcPort) and do not
 * look whether it is there: ours is of a socket of the file system, without encryption or
 * authentication.  Nothing may be read from it.
 */
#include "postgres.h"

/*
 * What describes an encrypted connection needs headers of libraries that the server's package
 * does not ask for.  It stands at the end of Port: all that is set here is before it.
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

#include "shared/port.h"

/* What Port has beyond what is known of it here is less than that. */
#define PORT_SIZE (2 * sizeof(Port) + 1024)

/*
 * Once for a process, when it is connected: describe a connection without a client.  The user
 * and the database are as at the start of a session; the server's log shows them.
 */
void
port_describe(void)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	Port *port = palloc0(PORT_SIZE);

	/* with this family the server asks nothing of the socket, which there is none of */
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
