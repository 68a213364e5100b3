/*
 * history_flows.h
 *		Rows of flows that have not ended stay, however old they are.
 */
#ifndef PG_TASK_HISTORY_FLOWS_H
#define PG_TASK_HISTORY_FLOWS_H

#include "postgres.h"

#include "task/rows.h"

extern void history_flows_forget(void);
extern int history_flows_filter(HistoryRow *rows, int count);

#endif /* PG_TASK_HISTORY_FLOWS_H */
