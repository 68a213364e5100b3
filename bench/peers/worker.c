/*
 * worker.c
 *		Workers as one writes them by hand, on bench.loop: woken by NOTIFY, they claim a task with
 *		FOR UPDATE SKIP LOCKED, commit that, run its request, and commit its outcome.
 *
 * worker NUMBER: so many processes, until standard input ends.  The connection is that of libpq's
 * environment variables.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <libpq-fe.h>

static const char claim[] =
	"UPDATE bench.loop SET state = 'WORK', attempt = attempt + 1, start = clock_timestamp(),"
	"       pid = pg_backend_pid()"
	" WHERE id = (SELECT id FROM bench.loop WHERE state = 'PLAN' AND waits IS NULL"
	"             ORDER BY queue COLLATE \"C\","
	"                      (CASE WHEN hold IS NULL THEN coalesce(max, 2147483647) ELSE 0 END),"
	"                      priority, role, role_id, dt, id"
	"             LIMIT 1 FOR UPDATE SKIP LOCKED)"
	" RETURNING id, request";

static const char finish[] =
	"UPDATE bench.loop SET state = 'DONE', stop = clock_timestamp(), response = $2"
	" WHERE id = $1 AND state = 'WORK'";

/* Fail unless the result is what was asked for. */
static PGresult *
check(PGconn *connection, PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK)
		return result;
	fprintf(stderr, "worker: %s", PQerrorMessage(connection));
	exit(1);
}

static void
execute(PGconn *connection, const char *command)
{
	PQclear(check(connection, PQexec(connection, command)));
}

/* Claim a task, run it and write its outcome.  Returns false if none waits. */
static int
run_task(PGconn *connection)
{
	PGresult *claimed =
		check(connection, PQexecPrepared(connection, "claim", 0, NULL, NULL, NULL, 0));
	int found = PQntuples(claimed) > 0;

	if (found)
	{
		PGresult *answer;
		const char *arguments[2] = {PQgetvalue(claimed, 0, 0)};

		execute(connection, "BEGIN");
		answer = check(connection, PQexec(connection, PQgetvalue(claimed, 0, 1)));
		arguments[1] = PQgetvalue(answer, 0, 0);
		PQclear(check(connection,
					  PQexecPrepared(connection, "finish", 2, arguments, NULL, NULL, 0)));
		execute(connection, "COMMIT");
		PQclear(answer);
	}
	PQclear(claimed);
	return found;
}

/* Forget the notifications that have come.  Returns whether there were any. */
static int
take_notifications(PGconn *connection)
{
	PGnotify *notification;
	int found = 0;

	if (!PQconsumeInput(connection))
	{
		fprintf(stderr, "worker: %s", PQerrorMessage(connection));
		exit(1);
	}
	while ((notification = PQnotifies(connection)) != NULL)
	{
		PQfreemem(notification);
		found = 1;
	}
	return found;
}

static void
work(void)
{
	PGconn *connection = PQconnectdb("application_name='bench worker'");
	struct pollfd events[2] = {{STDIN_FILENO, POLLIN, 0}, {PQsocket(connection), POLLIN, 0}};

	execute(connection, "LISTEN bench_worker");
	PQclear(check(connection, PQprepare(connection, "claim", claim, 0, NULL)));
	PQclear(check(connection, PQprepare(connection, "finish", finish, 2, NULL)));
	do
		while (run_task(connection) || take_notifications(connection))
			;
	while (poll(events, 2, -1) <= 0 || events[0].revents == 0);
	PQfinish(connection);
	exit(0);
}

int
main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 1;
	int i;

	for (i = 1; i < count; i++)
		if (fork() == 0)
			work();
	work();
}
