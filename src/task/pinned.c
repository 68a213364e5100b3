/*
 * pinned.c
 *		Pins settings while code of the table's owner runs in an executor.
 *
 * A task may set what it likes, and so may its role.  For the owner's triggers, settings that
 * change the meaning of a statement have the values of the configuration file; settings that
 * change how values are written or read have the values that the role's session had before the
 * task.  owner.c sets search_path.
 *
 * The C variables are compared, so that a setting that has not changed costs nothing.  This file
 * sets nothing on its own: owner_become calls it, within a GUC nest level.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/toast_compression.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "parser/parse_expr.h"
#include "parser/parser.h"
#include "pgtime.h"
#include "tsearch/ts_cache.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/bytea.h"
#include "utils/float.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/xml.h"

#include "compat.h"
#include "task/pinned.h"

/* Declared in utils/pg_locale.h, which needs the headers of ICU. */
extern PGDLLIMPORT char *locale_monetary;
extern PGDLLIMPORT char *locale_numeric;
extern PGDLLIMPORT char *locale_time;

typedef enum PinType
{
	PIN_BOOL,
	PIN_INT,
	PIN_TEXT,
	PIN_POINTER
} PinType;

typedef struct Pin
{
	const char *name;
	bool of_session; /* value of the role's session, not of the configuration file */
	PinType type;
	const void *variable;
} Pin;

#define PIN(its_name, session, its_type, address)                                      \
	{                                                                                  \
		.name = its_name, .of_session = session, .type = its_type, .variable = address \
	}

/* clang-format off */
static const Pin pins[] = {
	/* the meaning of a statement */
	COMPAT_PIN_STRINGS(PIN)
	PIN("backslash_quote", false, PIN_INT, &backslash_quote),
	PIN("transform_null_equals", false, PIN_BOOL, &Transform_null_equals),
	PIN("array_nulls", false, PIN_BOOL, &Array_nulls),
	PIN("xmloption", false, PIN_INT, &xmloption),
	/* which triggers fire */
	PIN("session_replication_role", false, PIN_INT, &SessionReplicationRole),
	/* whether an error ends the session */
	PIN("exit_on_error", false, PIN_BOOL, &ExitOnAnyError),
	/* how values are written and read */
	PIN("DateStyle", true, PIN_INT, &DateStyle),
	PIN("DateStyle", true, PIN_INT, &DateOrder),
	PIN("IntervalStyle", true, PIN_INT, &IntervalStyle),
	PIN("TimeZone", true, PIN_POINTER, &session_timezone),
	PIN("bytea_output", true, PIN_INT, &bytea_output),
	PIN("extra_float_digits", true, PIN_INT, &extra_float_digits),
	PIN("default_text_search_config", true, PIN_TEXT, &TSCurrentConfig),
	PIN("lc_monetary", true, PIN_TEXT, &locale_monetary),
	PIN("lc_numeric", true, PIN_TEXT, &locale_numeric),
	PIN("lc_time", true, PIN_TEXT, &locale_time),
	PIN("quote_all_identifiers", true, PIN_BOOL, &quote_all_identifiers),
	/* how objects are created */
	PIN("check_function_bodies", true, PIN_BOOL, &check_function_bodies),
	PIN("default_table_access_method", true, PIN_TEXT, &default_table_access_method),
	PIN("default_toast_compression", true, PIN_INT, &default_toast_compression),
};
/* clang-format on */

/*
 * The value that each setting is pinned to.  It is known for the life of the process, because a
 * task may change the setting before it is needed.
 */
static struct
{
	char *wanted;		 /* value as text; NULL: not known */
	int number;			 /* value of the variable for "wanted", for PIN_BOOL and PIN_INT */
	const char *text;	 /* the same for PIN_TEXT: a copy, or NULL */
	const void *pointer; /* the same for PIN_POINTER: the object is never freed */
} pinned[lengthof(pins)];

/* Remember the value that a setting has now. */
static void
remember_value(int i)
{
	const void *variable = pins[i].variable;

	switch (pins[i].type)
	{
		case PIN_BOOL:
			pinned[i].number = *(const bool *) variable;
			break;
		case PIN_INT:
			pinned[i].number = *(const int *) variable;
			break;
		case PIN_POINTER:
			pinned[i].pointer = *(const void *const *) variable;
			break;
		case PIN_TEXT:
			if (*(char *const *) variable)
				pinned[i].text = MemoryContextStrdup(TopMemoryContext, *(char *const *) variable);
			break;
	}
	pinned[i].wanted =
		MemoryContextStrdup(TopMemoryContext, GetConfigOption(pins[i].name, false, false));
}

/* Does the setting have another value than the one that is wanted? */
static bool
value_differs(int i)
{
	const void *variable = pins[i].variable;
	const char *text;

	switch (pins[i].type)
	{
		case PIN_BOOL:
			return *(const bool *) variable != (bool) pinned[i].number;
		case PIN_INT:
			return *(const int *) variable != pinned[i].number;
		case PIN_POINTER:
			return *(const void *const *) variable != pinned[i].pointer;
		case PIN_TEXT:
			text = *(char *const *) variable;
			return (text == NULL) != (pinned[i].text == NULL) ||
				   (text && strcmp(text, pinned[i].text) != 0);
	}
	return true;
}

/*
 * Called twice per executor: before it connects, since connecting applies the role's settings, and
 * after it.
 */
void
pinned_define(bool connected)
{
	int i;

	Assert(OidIsValid(MyDatabaseId) == connected);
	for (i = 0; i < (int) lengthof(pins); i++)
		if (pins[i].of_session == connected)
			remember_value(i);
}

/*
 * Set the settings that differ, until the end of the current nest level.  Does nothing in other
 * processes, which never call pinned_define.
 */
void
pinned_set(void)
{
	int i;

	for (i = 0; i < (int) lengthof(pins); i++)
		if (pinned[i].wanted && value_differs(i))
			(void) set_config_option(pins[i].name, pinned[i].wanted, PGC_SUSET, PGC_S_SESSION,
									 GUC_ACTION_SAVE, true, 0, false);
}
