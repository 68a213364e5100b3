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

/* These headers would need others, of libraries that the server's package does not ask for. */
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

static ResponseText *output = NULL;
static ResponseText *notices = NULL;
static bool received = false;
static int copy_encoding = -1; /* of COPY data; -1: client_encoding */
static ClientFatal fatal;
static MemoryContext scratch = NULL; /* reset after every message */

/* Convert text that was sent to the client back to the server encoding. */
static char *
from_client(char *text)
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
	report->message = from_client(report->message);
	report->detail = from_client(report->detail);
	report->hint = from_client(report->hint);
}

static void
take_notice(const char *data, size_t length)
{
	ErrorData report;

	parse_report(data, length, &report);
	response_put_line(notices, message_notice(&report));
}

/* Errors are caught by the executor.  A FATAL is not, so record it here. */
static void
take_error(const char *data, size_t length)
{
	ErrorData report;

	parse_report(data, length, &report);
	if (report.elevel < FATAL)
		return;
	fatal.sqlstate = report.sqlerrcode;
	if (report.message == NULL)
		report.message = "";
	strlcpy(fatal.message, report.message,
			pg_mbcliplen(report.message, (int) strlen(report.message), sizeof(fatal.message) - 1) +
				1);
}

/* Each row of COPY TO STDOUT ends in a newline; lines of a result are separated by one. */
static void
take_copy_data(const char *data, size_t length)
{
	int encoding = copy_encoding >= 0 ? copy_encoding : pg_get_client_encoding();
	char *text;

	if (length > 0 && data[length - 1] == '\n')
		length--;
	text = pg_any_to_server(data, (int) length, encoding);
	response_start_line(output);
	response_put(output, text, text == data ? (int) length : (int) strlen(text));
}

static int
take_message(char type, const char *data, size_t length)
{
	MemoryContext old;

	if (output == NULL)
		return 0;
	/* the caller is in ErrorContext, which the server resets only after errors */
	old = MemoryContextSwitchTo(scratch);
	switch (type)
	{
		case 'N':
			take_notice(data, length);
			break;
		case 'E':
			take_error(data, length);
			break;
		case 'H':
			received = true;
			break;
		case 'd':
			take_copy_data(data, length);
			break;
		default:
			break;
	}
	MemoryContextSwitchTo(old);
	MemoryContextReset(scratch);
	return 0;
}

static void
take_message_noblock(char type, const char *data, size_t length)
{
	(void) take_message(type, data, length);
}

static void
do_nothing(void)
{
}

static int
flush_nothing(void)
{
	return 0;
}

static bool
nothing_pending(void)
{
	return false;
}

static const PQcommMethods methods = {
	.comm_reset = do_nothing,
	.flush = flush_nothing,
	.flush_if_writable = flush_nothing,
	.is_send_pending = nothing_pending,
	.putmessage = take_message,
	.putmessage_noblock = take_message_noblock,
};

/* Called once per executor. */
void
client_define(void)
{
	scratch = AllocSetContextCreate(TopMemoryContext, "pg_task client", ALLOCSET_DEFAULT_SIZES);
	PqCommMethods = &methods;
	FrontendProtocol = PG_PROTOCOL_LATEST;
	whereToSendOutput = DestNone;
}

/* A request begins.  Both texts must live until client_end. */
void
client_begin(ResponseText *output_text, ResponseText *notice_text)
{
	output = output_text;
	notices = notice_text;
	received = false;
	fatal.sqlstate = 0;
	whereToSendOutput = DestRemote;
}

/* Has COPY TO STDOUT started since the last call? */
bool
client_received(void)
{
	bool result = received;

	received = false;
	return result;
}

/* Set the encoding of the COPY data that follows; -1: client_encoding. */
void
client_expect(int encoding)
{
	copy_encoding = encoding;
}

/* The request has ended, with or without an error. */
void
client_end(void)
{
	whereToSendOutput = DestNone;
	output = notices = NULL;
	copy_encoding = -1;
	/* an error may have been raised while a message was being handled */
	MemoryContextReset(scratch);
}

/* The FATAL error that is ending this process, or NULL. */
const ClientFatal *
client_fatal(void)
{
	return fatal.sqlstate != 0 ? &fatal : NULL;
}
