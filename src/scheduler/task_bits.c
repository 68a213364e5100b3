/*
 * task_bits.c
 *		A set of tasks, as bits for their hashes: it may have tasks that were not added.
 *
 * Each task sets a few bits.  In a set of 100,000 tasks, one in 10,000 others seems to be; of a
 * million, one in six.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "utils/memutils.h"

#include "scheduler/task_bits.h"

#define TASK_BITS (1 << 22)
#define TASK_HASHES 4

/* The bits of a task: the first one, and from each to the next. */
typedef struct TaskBits
{
	uint32 first;
	uint32 step;
} TaskBits;

static TaskBits
bits_of(int64 id)
{
	uint32 high = murmurhash32((uint32) (id >> 32));
	uint32 first = murmurhash32((uint32) id ^ high);

	return (TaskBits){first, murmurhash32(first ^ high ^ 0x5bd1e995) | 1};
}

/* Create an empty set, which the caller frees with pfree. */
uint8 *
task_bits_create(void)
{
	return MemoryContextAllocZero(TopMemoryContext, TASK_BITS / 8);
}

/* Make a set empty. */
void
task_bits_clear(uint8 *bits)
{
	memset(bits, 0, TASK_BITS / 8);
}

/* Add a task; NULL: there is no set. */
void
task_bits_add(uint8 *bits, int64 id)
{
	TaskBits mine = bits_of(id);
	int i;

	for (i = 0; bits && i < TASK_HASHES; i++)
	{
		uint32 bit = (mine.first + i * mine.step) % TASK_BITS;

		bits[bit / 8] |= 1 << (bit % 8);
	}
}

/* Is a task perhaps in the set?  False if it is not. */
bool
task_bits_have(const uint8 *bits, int64 id)
{
	TaskBits mine = bits_of(id);
	int i;

	for (i = 0; i < TASK_HASHES; i++)
	{
		uint32 bit = (mine.first + i * mine.step) % TASK_BITS;

		if ((bits[bit / 8] & (1 << (bit % 8))) == 0)
			return false;
	}
	return true;
}
