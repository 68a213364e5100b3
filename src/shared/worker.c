/*
 * worker.c
 *		Background workers of pg_task: their names, their entry points, the slot that each was
 *		started for, and the connection to a client that they do not have.
 */
#include "postgres.h"

/*
 * Without these, libpq-be.h needs headers of libraries on which the server's development package
 * does not depend.  The fields of Port that they add are at its end, after all that is set here.
 */
#undef ENABLE_GSS
#undef USE_OPENSSL
#undef USE_SSL
#include "commands/dbcommands.h"
#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "shared/report.h"
#include "shared/worker.h"

/*
 * A lack of worker slots is logged if it lasts for this time (ms): that of a process that has ended
 * becomes free a little later.
 */
#define NO_WORKER_MS 1000

/* That lack.  Static, because it lasts longer than an attempt. */
static Reports missing;

/* More than the server's Port can be, with the fields that are left out here. */
#define PORT_SIZE (2 * sizeof(Port) + 1024)

/* Fill in the description of a background worker of a kind, such as "scheduler". */
static void
describe_worker(BackgroundWorker *worker, const char *kind)
{
	memset(worker, 0, sizeof(BackgroundWorker));
	snprintf(worker->bgw_name, BGW_MAXLEN, "pg_task %s", kind);
	snprintf(worker->bgw_type, BGW_MAXLEN, "pg_task %s", kind);
	strlcpy(worker->bgw_library_name, "pg_task", BGW_MAXLEN);
	snprintf(worker->bgw_function_name, BGW_MAXLEN, "pg_task_%s_main", kind);
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = BGW_NEVER_RESTART;
}

/* The postmaster, when it loads the library: it starts the supervisor, and again when that exits.
 */
void
worker_register_supervisor(void)
{
	BackgroundWorker worker;

	describe_worker(&worker, "supervisor");
	worker.bgw_restart_time = 1;
	RegisterBackgroundWorker(&worker);
}

/*
 * Start a process of a kind for a slot, which is named after a database and (unless NULL) a role.
 * The postmaster signals this process, and so sets its latch, when the new one starts and ends.
 * NULL if no worker slot is free.  The handle is allocated in TopMemoryContext.  Nothing else is
 * allocated: an error would leave a slot reserved that has no process.
 */
BackgroundWorkerHandle *
worker_start(const char *kind, const char *database, const char *role, int slot, uint32 generation)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	BackgroundWorkerHandle *handle;
	BackgroundWorker worker;

	describe_worker(&worker, kind);
	snprintf(worker.bgw_name, BGW_MAXLEN, "pg_task %s %s%s%s", kind, database, role ? " " : "",
			 role ? role : "");
	worker.bgw_main_arg = Int32GetDatum(slot);
	memcpy(worker.bgw_extra, &generation, sizeof(generation));
	worker.bgw_notify_pid = MyProcPid;
	if (RegisterDynamicBackgroundWorker(&worker, &handle))
		report_end(&missing, false);
	else
		handle = NULL;
	MemoryContextSwitchTo(old);
	return handle;
}

/* No worker slot is free for a process of this database: log that once, if it lasts. */
void
worker_report_none(const char *process, const char *database)
{
	if (!report_due(&missing, "", NO_WORKER_MS))
		return;
	ereport(
		LOG,
		(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
		 errmsg("no background worker slot is free for %s of database \"%s\"", process, database),
		 errdetail("Its tasks wait."),
		 errhint("Increase \"max_worker_processes\", or lower \"pg_task.max_executors\".")));
}

/*
 * Describe a connection without a client: of a Unix-domain socket, without encryption or
 * authentication, from which nothing can be read.  Functions that report on the connection read
 * this description (MyProcPort) without checking that there is one.  A process calls this once,
 * when it is connected.  The server's log shows the user and the database.
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
