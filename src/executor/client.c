/*
 * client.c
 *		The client that a request believes to have: takes the protocol messages
 *		that the server sends while a request runs.
 *
 * The server's own switch for that is PqCommMethods, as parallel workers use
 * it.  Notices and the data of COPY TO STDOUT are kept; everything else is
 * dropped, for rows come by a DestReceiver and errors are caught.  Outside
 * client_begin and client_end nothing is sent at all.
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

static ResultText *output = NULL;
static ResultText *notices = NULL;
static bool received = false;
static int copy_encoding = -1; /* of COPY data; -1: the client's */
static ClientFatal fatal;
static MemoryContext scratch = NULL; /* reset after every message */

/* A text that was sent to the client, in the server's encoding again. */
static char *
from_client(char *text)
{
	return text ? pg_client_to_server(text, (int) strlen(text)) : NULL;
}

/* Take a notice or an error apart as a client would. */
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
	result_put_line(notices, result_notice(&report));
}

/* Errors are caught elsewhere; but after a FATAL nobody is left to catch it. */
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

/* A row of COPY TO STDOUT ends in a newline, ours are separated by one. */
static void
take_copy_data(const char *data, size_t length)
{
	int encoding = copy_encoding >= 0 ? copy_encoding : pg_get_client_encoding();
	char *text;

	if (length > 0 && data[length - 1] == '\n')
		length--;
	text = pg_any_to_server(data, (int) length, encoding);
	result_start_line(output);
	result_put(output, text, text == data ? (int) length : (int) strlen(text));
}

static int
take_message(char type, const char *data, size_t length)
{
	MemoryContext old;

	if (output == NULL)
		return 0;
	/* the server is in the context of the report, which it clears after errors alone */
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

/* Once for a process. */
void
client_define(void)
{
	scratch = AllocSetContextCreate(TopMemoryContext, "pg_task client", ALLOCSET_DEFAULT_SIZES);
	PqCommMethods = &methods;
	FrontendProtocol = PG_PROTOCOL_LATEST;
	whereToSendOutput = DestNone;
}

/* A request begins: both texts must live until client_end. */
void
client_begin(ResultText *output_text, ResultText *notice_text)
{
	output = output_text;
	notices = notice_text;
	received = false;
	fatal.sqlstate = 0;
	whereToSendOutput = DestRemote;
}

/* Did a COPY send something since the last question? */
bool
client_received(void)
{
	bool result = received;

	received = false;
	return result;
}

/* The data of COPY that comes next is in this encoding; -1: in the client's. */
void
client_expect(int encoding)
{
	copy_encoding = encoding;
}

/* The request is over, whether it failed or not. */
void
client_end(void)
{
	whereToSendOutput = DestNone;
	output = notices = NULL;
	copy_encoding = -1;
	/* an error may have come while a message was taken */
	MemoryContextReset(scratch);
}

/* The FATAL that ends this process, or NULL. */
const ClientFatal *
client_fatal(void)
{
	return fatal.sqlstate != 0 ? &fatal : NULL;
}
