/*
 * targets.c
 *		The list in pg_task.database: which databases have a task table, and whose it is.
 *
 * This file reads no setting and no catalog.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "parser/scansup.h"

#include "settings.h"

/* Advance *text past white space.  Returns the character there. */
static char
skip_space(const char **text)
{
	while (scanner_isspace(**text))
		(*text)++;
	return **text;
}

/*
 * Read an identifier at *text, quoted or not, and advance *text past it and the white space that
 * follows.  Returns NULL if there is none.
 */
static char *
read_identifier(const char **text)
{
	bool quoted = (skip_space(text) == '"');
	const char *p = *text;
	StringInfoData name;

	initStringInfo(&name);
	if (quoted)
	{
		bool closed = false;

		for (p++; *p && !closed; p++)
		{
			closed = (p[0] == '"' && p[1] != '"');
			if (!closed)
				appendStringInfoChar(&name, *p);
			if (p[0] == '"' && !closed)
				p++;
		}
		if (!closed)
			return NULL;
	}
	else
	{
		while (*p && *p != ',' && *p != ':' && *p != '"' && !scanner_isspace(*p))
			appendStringInfoChar(&name, *p++);
	}
	*text = p;
	(void) skip_space(text);
	if (name.len == 0 || name.len >= NAMEDATALEN)
		return NULL;
	return quoted ? name.data : downcase_identifier(name.data, name.len, false, false);
}

/* Read one entry of pg_task.database and advance *text past it.  NULL: a syntax error. */
static Target *
read_target(const char **text)
{
	Target *target = palloc0(sizeof(Target));
	char first = skip_space(text);

	target->excluded = (first == '-');
	if (first == '-' || first == '*')
		(*text)++;
	if (first == '*')
		(void) skip_space(text);
	else
	{
		bool quoted = (skip_space(text) == '"');

		target->database = read_identifier(text);
		/* without quotes, the word is the whole list */
		if (target->database == NULL || (!quoted && strcmp(target->database, "none") == 0))
			return NULL;
	}
	if (**text != ':')
		return target;
	(*text)++;
	target->role = read_identifier(text);
	return target->role && !target->excluded ? target : NULL;
}

/* Is the list the word "none", without quotes? */
static bool
names_no_database(const char *text)
{
	char *name;

	if (skip_space(&text) == '"')
		return false;
	name = read_identifier(&text);
	return name && strcmp(name, "none") == 0 && *text == '\0';
}

/*
 * Parse a list like "db1, db2:user2" or "*, -db3" into a List of Target in the current
 * memory context.  Returns false on a syntax error.
 */
bool
targets_parse(const char *text, List **targets)
{
	*targets = NIL;
	if (names_no_database(text))
		return true;
	if (skip_space(&text) == '\0')
		text = "*";
	for (;;)
	{
		Target *target = read_target(&text);

		if (target == NULL)
			return false;
		*targets = lappend(*targets, target);
		if (*text == '\0')
			return true;
		if (*text++ != ',')
			return false;
	}
}

/*
 * Check a list that has no syntax errors.  Returns what is wrong, or NULL.  A database of the name
 * "*" beside the word for all is the one mistake that is not told apart.
 */
const char *
targets_fault(List *targets)
{
	bool all = false;
	bool excluded = false;
	ListCell *cell;
	ListCell *other;

	foreach(cell, targets)
	{
		const Target *target = lfirst(cell);
		const char *name = target->database ? target->database : "*";

		for_each_cell(other, targets, lnext(targets, cell))
		{
			const char *another = ((Target *) lfirst(other))->database;

			if (strcmp(name, another ? another : "*") == 0)
				return psprintf("Database \"%s\" is named twice.", name);
		}
		all |= target->database == NULL;
		excluded |= target->excluded;
	}
	return excluded && !all ? "A database can be left out of all: \"*, -database\"." : NULL;
}

/* Return the entry for a database: the one that names it, or the one for all; else NULL. */
const Target *
targets_find(const List *targets, const char *database)
{
	const Target *all = NULL;
	ListCell *cell;

	foreach(cell, targets)
	{
		const Target *target = lfirst(cell);

		if (target->database == NULL)
			all = target;
		else if (strcmp(target->database, database) == 0)
			return target;
	}
	return all;
}
