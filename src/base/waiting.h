/* How a thread waits for another: it looks again and again for a while, then sleeps in the kernel until it is woken.
 *
 * Looking is quicker by tens of microseconds than being woken, but takes a CPU that somebody else may need; for how
 * long a thread looks is up to the pool (pool.c), which finds out whether its CPUs are shared. */
#ifndef NMLP_BASE_WAITING_H
#define NMLP_BASE_WAITING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { NMLP_LINE_ALIGN = 64 }; /* words of different threads stand in lines of their own */

/* One wait: zeroed, but for how long to look. */
typedef struct nmlp_spin {
    unsigned limit_ns;
    unsigned n_looks;
    uint64_t begin_ns;
} nmlp_spin;

uint64_t nmlp_waiting_clock_ns(void);

/* A short pause before the next look; false: it is time to sleep. */
bool nmlp_spin_pause(nmlp_spin *spin);

/* Sleeps until woken, unless *word is not `seen` any more. May return without either. */
void nmlp_futex_wait(atomic_uint *word, unsigned seen);
/* Wakes up to n sleepers. */
void nmlp_futex_wake(atomic_uint *word, int n);
/* The same for a word in memory that processes share; sleeps for timeout_ns at most. */
void nmlp_futex_wait_shared(atomic_uint *word, unsigned seen, long timeout_ns);
void nmlp_futex_wake_shared(atomic_uint *word, int n);

#endif
