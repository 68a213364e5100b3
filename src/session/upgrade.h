/*
 * upgrade.h
 *		What pg_task does in a server that pg_upgrade has started.
 */
#ifndef PG_TASK_UPGRADE_H
#define PG_TASK_UPGRADE_H

#include "postgres.h"

extern void upgrade_define(void);

#endif /* PG_TASK_UPGRADE_H */
