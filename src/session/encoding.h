/*
 * encoding.h
 *		Text of another database in the encoding of this one.
 */
#ifndef PG_TASK_ENCODING_H
#define PG_TASK_ENCODING_H

#include "postgres.h"

extern text *encoding_text(const char *string, int encoding);

#endif /* PG_TASK_ENCODING_H */
