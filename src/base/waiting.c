#define _GNU_SOURCE /* syscall */
#include "base/waiting.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LOOKS_PER_CLOCK = 32 };

uint64_t nmlp_waiting_clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

bool nmlp_spin_pause(nmlp_spin *spin) {
    if (spin->limit_ns == 0) return false;
    cpu_relax();
    if (++spin->n_looks % LOOKS_PER_CLOCK != 0) return true;
    uint64_t now = nmlp_waiting_clock_ns();
    if (spin->begin_ns == 0) spin->begin_ns = now;
    return now - spin->begin_ns < spin->limit_ns;
}

void nmlp_futex_wait(atomic_uint *word, unsigned seen) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

void nmlp_futex_wake(atomic_uint *word, int n) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0); }

void nmlp_futex_wait_shared(atomic_uint *word, unsigned seen, long timeout_ns) {
    struct timespec timeout = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, NULL, 0);
}

void nmlp_futex_wake_shared(atomic_uint *word, int n) { syscall(SYS_futex, word, FUTEX_WAKE, n, NULL, NULL, 0); }
