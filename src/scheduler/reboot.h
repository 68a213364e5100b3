/*
 * reboot.h
 *		Plans the tasks that run when the server starts (cron "@reboot").
 */
#ifndef PG_TASK_REBOOT_H
#define PG_TASK_REBOOT_H

#include "postgres.h"

#include "scheduler/job.h"

extern const SchedulerJob reboot_job;

#endif /* PG_TASK_REBOOT_H */
