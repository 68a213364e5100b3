/*
 * database.h
 *		What ALTER DATABASE has set for this database.
 */
#ifndef PG_TASK_DATABASE_H
#define PG_TASK_DATABASE_H

#include "postgres.h"

extern char *database_settings(bool *disabled);

#endif /* PG_TASK_DATABASE_H */
