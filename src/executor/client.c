/*
 * client.c
 *		Stands in for the client of a request: takes the protocol messages that the server sends
 *		while a request runs.
 *
 * Uses PqCommMethods, as parallel workers do.  Notices and the data of COPY TO STDOUT are kept.
 * All other messages are dropped: rows come through a DestReceiver, and errors are caught.
 * Outside client_begin and client_end nothing is sent.
 */
#include "postgres.h"

/*
 * With these, libpq.h includes headers of libraries that need not be installed where an extension
 * is built.
 */
#undef ENABLE_GSS
#undef USE_OPENSSL
#undef USE_SSL
#include "libpq/libpq.h"
#include "libpq/pqmq.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "tcop/dest.h"
#include "tcop/tcopprot.h"
#include "utils/elog.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "compat.h"
#include "executor/client.h"
#include "executor/message.h"
#include "executor/response.h"

/*
 * Static, because the server calls our methods without an argument.  "response" and
 * "notices" are set only between client_begin and client_end; the abort path calls client_end.
 */
static struct
{
	MemoryContext scratch; /* reset after every message */
	ResponseText *response;
	ResponseText *notices;
	bool received;	   /* COPY TO STDOUT has begun */
	int copy_encoding; /* of COPY data; -1: client_encoding */
	ClientFatal fatal; /* kept until the next request begins: an exit callback reads it */
} client = {.copy_encoding = -1};

/* Convert text that was sent to the client back to the server encoding. */
static char *
to_server_encoding(char *text)
{
	return text ? pg_client_to_server(text, (int) strlen(text)) : NULL;
}

/* Parse a NoticeResponse or ErrorResponse, as a client would. */
static void
parse_report(const char *data, size_t length, ErrorData *report)
{
	StringInfoData message;

	initStringInfo(&message);
	appendBinaryStringInfo(&message, data, (int) length);
	pq_parse_errornotice(&message, report);
	report->message = to_server_encoding(report->message);
	report->detail = to_server_encoding(report->detail);
	report->hint = to_server_encoding(report->hint);
}

static void
receive_notice(const char *data, size_t length)
{
	ErrorData report;

	parse_report(data, length, &report);
	response_put_line(client.notices, message_notice(&report));
}

/* run.c catches an ERROR.  Nothing catches a FATAL, so record it here. */
static void
receive_error(const char *data, size_t length)
{
	ErrorData report;

	parse_report(data, length, &report);
	if (report.elevel < FATAL)
		return;
	client.fatal.sqlstate = report.sqlerrcode;
	if (report.message == NULL)
		report.message = "";
	strlcpy(client.fatal.message, report.message,
			pg_mbcliplen(report.message, (int) strlen(report.message),
						 sizeof(client.fatal.message) - 1) +
				1);
}

/* In JSON, the data of COPY TO STDOUT are a string: request.c ends it. */
static void
put_json_line(const char *line, int length)
{
	char *text = psprintf("%s%.*s", client.response->any ? "\n" : "", length, line);

	client.response->any = true;
	document_put_text(client.response, text, (int) strlen(text));
}

/* Each row of COPY TO STDOUT ends in a newline; lines of a result are separated by one. */
static void
receive_copy_data(const char *data, size_t length)
{
	int encoding = client.copy_encoding >= 0 ? client.copy_encoding : pg_get_client_encoding();
	char *text;

	if (length > 0 && data[length - 1] == '\n')
		length--;
	text = pg_any_to_server(data, (int) length, encoding);
	if (text != data)
		length = strlen(text);
	if (client.response->json)
	{
		put_json_line(text, (int) length);
		return;
	}
	response_start_line(client.response);
	response_put(client.response, text, (int) length);
}

static int
receive_message(char type, const char *data, size_t length)
{
	MemoryContext old;

	if (client.response == NULL)
		return 0;
	/* the caller is in ErrorContext, which the server resets only after errors */
	old = MemoryContextSwitchTo(client.scratch);
	switch (type)
	{
		case 'N':
			receive_notice(data, length);
			break;
		case 'E':
			receive_error(data, length);
			break;
		case 'H':
			client.received = true;
			if (client.response->json)
			{
				client.response->any = false;
				document_begin_result(client.response, "{\"command\":\"COPY\",\"data\":\"");
			}
			break;
		case 'd':
			receive_copy_data(data, length);
			break;
		default:
			break;
	}
	MemoryContextSwitchTo(old);
	MemoryContextReset(client.scratch);
	return 0;
}

static void
receive_message_noblock(char type, const char *data, size_t length)
{
	(void) receive_message(type, data, length);
}

static void
ignore_reset(void)
{
}

static int
ignore_flush(void)
{
	return 0;
}

static bool
is_send_pending(void)
{
	return false;
}

static const PQcommMethods methods = {
	.comm_reset = ignore_reset,
	.flush = ignore_flush,
	.flush_if_writable = ignore_flush,
	.is_send_pending = is_send_pending,
	.putmessage = receive_message,
	.putmessage_noblock = receive_message_noblock,
};

/* Called once per executor. */
void
client_define(void)
{
	client.scratch =
		AllocSetContextCreate(TopMemoryContext, "pg_task client", ALLOCSET_DEFAULT_SIZES);
	PqCommMethods = &methods;
	FrontendProtocol = PG_PROTOCOL_LATEST;
	whereToSendOutput = DestNone;
}

/* A request begins.  Both texts must live until client_end; call that after an error as well. */
void
client_begin(ResponseText *response, ResponseText *notices)
{
	Assert(client.response == NULL);
	client.response = response;
	client.notices = notices;
	client.received = false;
	client.fatal.sqlstate = 0;
	whereToSendOutput = DestRemote;
}

/* Has COPY TO STDOUT started since the last call? */
bool
client_has_received(void)
{
	bool received = client.received;

	client.received = false;
	return received;
}

/* Set the encoding of the COPY data that follows; -1: client_encoding. */
void
client_set_copy_encoding(int encoding)
{
	client.copy_encoding = encoding;
}

/* The request has ended, with or without an error. */
void
client_end(void)
{
	whereToSendOutput = DestNone;
	client.response = client.notices = NULL;
	client.copy_encoding = -1;
	/* an error may have been raised while a message was being handled */
	MemoryContextReset(client.scratch);
}

/* The FATAL error that is ending this process, or NULL. */
const ClientFatal *
client_fatal(void)
{
	return client.fatal.sqlstate != 0 ? &client.fatal : NULL;
}
