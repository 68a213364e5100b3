/*
 * rules_reader.h
 *		When the scheduler prepares and reads the queue table.
 */
#ifndef PG_TASK_RULES_READER_H
#define PG_TASK_RULES_READER_H

#include "postgres.h"

#include "shared/clock.h"
#include "shared/report.h"

/* What a scheduler remembers of the queue table. */
typedef struct RulesReader
{
	Oid relid;		/* InvalidOid: there is none that can be used */
	bool prepared;	/* and has not changed since, as far as is known */
	bool known;		/* the rules of this table were read */
	bool wanted;	/* a commit has changed it */
	bool small;		/* it is read as often as commits ask for it */
	MonoTime again; /* when it is read again, in case that no commit has told */
	MonoTime pause; /* not before this */
	Reports faults; /* that were logged */
} RulesReader;

extern void rules_reader_forget(void);
extern void rules_reader_want(void);
extern bool rules_reader_wants(void);
extern MonoTime rules_reader_until(void);
extern void rules_reader_run(MonoTime now);

#endif /* PG_TASK_RULES_READER_H */
