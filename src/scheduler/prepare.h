/*
 * prepare.h
 *		The task table of this scheduler, and the settings of its database.
 */
#ifndef PG_TASK_PREPARE_H
#define PG_TASK_PREPARE_H

#include "postgres.h"

#include "shared/clock.h"

extern void prepare_begin(void);
extern bool prepare_settings(void);
extern bool prepare_table(void);
extern MonoTime prepare_again_at(void);
extern void prepare_look_away(void);

#endif /* PG_TASK_PREPARE_H */
