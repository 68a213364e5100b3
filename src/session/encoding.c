/*
 * encoding.c
 *		Text of another database in the encoding of this one.
 *
 * This file reads nothing but the catalog of conversions.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"

#include "compat.h"
#include "session/encoding.h"

/* Replace what is not ASCII by question marks. */
static text *
ascii_text(const char *string, int length)
{
	text *result = cstring_to_text_with_len(string, length);
	int i;

	for (i = 0; i < length; i++)
		if (IS_HIGHBIT_SET(VARDATA(result)[i]))
			VARDATA(result)[i] = '?';
	return result;
}

/*
 * Return text of another database in the encoding of this one.  If it cannot be converted as a
 * whole, only what is ASCII in it is shown: one name must not make the function fail.
 */
text *
encoding_text(const char *string, int encoding)
{
	int length = (int) strlen(string);
	int mine = GetDatabaseEncoding();
	Size size = length * MAX_CONVERSION_GROWTH + 1;
	char *converted;
	Oid procedure;

	if (encoding == mine)
		return cstring_to_text_with_len(string, length);
	if (encoding == PG_SQL_ASCII)
		return pg_verify_mbstr(mine, string, length, true)
				   ? cstring_to_text_with_len(string, length)
				   : ascii_text(string, length);
	/* a client of a database without an encoding may not be able to read what is not ASCII */
	procedure = mine == PG_SQL_ASCII ? InvalidOid : FindDefaultConversionProc(encoding, mine);
	if (!OidIsValid(procedure))
		return ascii_text(string, length);
	converted = palloc(size);
	if (pg_do_encoding_conversion_buf(procedure, encoding, mine, (unsigned char *) string, length,
									  (unsigned char *) converted, (int) size, true) < length)
		return ascii_text(string, length);
	return cstring_to_text(converted);
}
