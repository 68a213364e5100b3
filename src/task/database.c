/*
 * database.c
 *		What ALTER DATABASE has set for this database, of the settings of which a scheduler takes no
 *		notice while it runs.
 *
 * Reads a catalog and changes nothing.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_db_role_setting.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"

#include "compat.h"
#include "task/database.h"

/* If an element "name=value" sets this parameter, return the value, else NULL. */
static const char *
value_of(const char *element, const char *name)
{
	size_t length = strlen(name);

	return pg_strncasecmp(element, name, length) == 0 && element[length] == '='
			   ? element + length + 1
			   : NULL;
}

/* Add what an element "name=value" sets to the settings, if it concerns the scheduler. */
static void
take_element(const char *element, StringInfo text, bool *disabled)
{
	static const char *const names[] = {
		"pg_task.enabled", "pg_task.schema_name",  "pg_task.table_name", "pg_task.schema",
		"pg_task.table",   "pg_task.create_table", "pg_task.period",	 "pg_task.owner_code"};
	const char *value;
	bool enabled;
	int i;

	for (i = 0; i < (int) lengthof(names); i++)
		if ((value = value_of(element, names[i])) != NULL)
		{
			appendStringInfo(text, "%s\n", element);
			if (i == 0 && parse_bool(value, &enabled))
				*disabled = !enabled;
		}
}

/*
 * Return the settings of this database that a scheduler reads when it starts, as a text to compare,
 * in the current memory context.  Sets *disabled if pg_task.enabled is off among them.
 */
char *
database_settings(bool *disabled)
{
	Relation rel = table_open(DbRoleSettingRelationId, AccessShareLock);
	StringInfoData found;
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple tuple;
	bool isnull = true;
	Datum config = (Datum) 0;

	*disabled = false;
	initStringInfo(&found);
	ScanKeyInit(&keys[0], Anum_pg_db_role_setting_setdatabase, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(MyDatabaseId));
	ScanKeyInit(&keys[1], Anum_pg_db_role_setting_setrole, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(InvalidOid));
	scan = systable_beginscan(rel, DbRoleSettingDatidRolidIndexId, true, NULL, 2, keys);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		config =
			heap_getattr(tuple, Anum_pg_db_role_setting_setconfig, RelationGetDescr(rel), &isnull);
	if (!isnull)
	{
		Datum *elements;
		int count;
		int i;

		deconstruct_array(DatumGetArrayTypeP(config), TEXTOID, -1, false, TYPALIGN_INT, &elements,
						  NULL, &count);
		for (i = 0; i < count; i++)
			take_element(TextDatumGetCString(elements[i]), &found, disabled);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found.data;
}
