#define _GNU_SOURCE /* RUSAGE_THREAD */
#include "base/pool.h"

#include <math.h>
#include <pthread.h>
#include <sys/resource.h>

#include "base/cpus.h"
#include "base/mem.h"

enum {
    THREADS_MAX = 1024,
    ACTIVE_BITS = 11, /* of a start word: how many threads take part, up to THREADS_MAX */
    FAN_IN = 4,       /* threads that one waits for at the end of a job */
    /* Between two jobs of a token pass microseconds, between two tokens some tens of them, and a thread that sleeps is
     * woken in tens of microseconds, one that sleeps on an idle virtual CPU in more. */
    SPIN_MOST_NS = 200000,
    SPIN_LEAST_NS = 1000,
    /* A thread that others push off its CPU more often than once in PREEMPTION_NS and that waits for it LOST_PERCENT of
     * the time it wants it, seen over OBSERVED_NS at least, shares it; that holds for SHARED_NS. Where nobody else
     * runs, it is pushed off some times a second, by the system, for microseconds. */
    PREEMPTION_NS = 25000000,
    LOST_PERCENT = 10,
    OBSERVED_NS = 10000000,
    SHARED_NS = 200000000,
    /* What a job costs besides its work: at all, and for every thread. */
    JOB_NS = 3000,
    JOB_NS_SHARED = 30000, /* where threads have to be woken */
    THREAD_NS = 200
};

/* What others read of a thread lies in two lines: one that seldom changes, one written at the end of every job. */
struct worker {
    _Alignas(NMLP_LINE_ALIGN)
        atomic_uint asleep; /* 1: sleeps, or is about to; whoever changes what it waits for wakes it */
    nmlp_pool *pool;
    int index;
    long n_preempted; /* when last asked, at asked_ns */
    uint64_t asked_ns;
    uint64_t cpu_ns;   /* used so far, then */
    uint64_t slept_ns; /* since then */
    pthread_t thread;
    _Alignas(
        NMLP_LINE_ALIGN) _Atomic uint64_t done; /* start word of the last job that it and those it waits for ended */
};

struct nmlp_pool {
    int n_threads;
    struct worker *workers; /* [n_threads]; the first is the caller */
    int n_nodes;            /* of memory, over which the threads are spread */
    unsigned spin_most_ns;
    atomic_uint spin_ns;              /* how long to look before sleeping */
    _Atomic uint64_t shared_until_ns; /* some thread's CPU is shared, for all that is known */
    nmlp_barrier barrier;
    /* A job: the count of jobs so far and how many threads take part, in one word, so that a thread which does not take
     * part need not read the rest. */
    _Alignas(NMLP_LINE_ALIGN) _Atomic uint64_t start;
    nmlp_pool_job *job; /* NULL: end */
    void *ctx;
    nmlp_pool_ahead ahead; /* of the job */
};

static int active_in(uint64_t start) { return (int)(start & ((1u << ACTIVE_BITS) - 1)); }

/* ---- waiting ---- */

static uint64_t ns_of(struct timeval t) { return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_usec * 1000u; }

/* Whether somebody else had this thread's CPU while it wanted it, since it was last asked. */
static bool has_shared(struct worker *self, uint64_t now) {
    struct rusage usage;
    if (getrusage(RUSAGE_THREAD, &usage) != 0) return false;
    uint64_t elapsed = now - self->asked_ns, cpu_ns = ns_of(usage.ru_utime) + ns_of(usage.ru_stime);
    uint64_t used = cpu_ns - self->cpu_ns, awake = elapsed > self->slept_ns ? elapsed - self->slept_ns : 0;
    uint64_t lost = awake > used ? awake - used : 0;
    long n = usage.ru_nivcsw - self->n_preempted;
    bool first = self->asked_ns == 0;
    self->n_preempted = usage.ru_nivcsw;
    self->asked_ns = now;
    self->cpu_ns = cpu_ns;
    self->slept_ns = 0;
    return !first && n >= 2 && (uint64_t)n * PREEMPTION_NS > elapsed && lost * 100 > awake * LOST_PERCENT;
}

/* A wait was too long for looking. Was it because somebody else had this thread's CPU meanwhile? */
static void adapt_spin(nmlp_pool *pool, struct worker *self) {
    uint64_t now = nmlp_waiting_clock_ns();
    if (now - self->asked_ns < OBSERVED_NS) return;
    bool shared = has_shared(self, now) && self->index > 0; /* the caller may wait for other things too */
    if (shared) atomic_store_explicit(&pool->shared_until_ns, now + SHARED_NS, memory_order_relaxed);
    bool anybody = now < atomic_load_explicit(&pool->shared_until_ns, memory_order_relaxed);
    atomic_store_explicit(&pool->spin_ns, anybody ? SPIN_LEAST_NS : pool->spin_most_ns, memory_order_relaxed);
}

/* Sleeps until *word is not `old`. In one order with `tell`: one of the two sees the other. */
static void sleep_while(struct worker *self, const _Atomic uint64_t *word, uint64_t old) {
    uint64_t begin = nmlp_waiting_clock_ns();
    for (;;) {
        atomic_store(&self->asleep, 1);
        if (atomic_load(word) != old) break;
        nmlp_futex_wait(&self->asleep, 1);
    }
    atomic_store_explicit(&self->asleep, 0, memory_order_relaxed);
    self->slept_ns += nmlp_waiting_clock_ns() - begin;
}

/* Wakes a thread that waits for what was changed before. */
static void tell(struct worker *other) {
    if (atomic_load(&other->asleep) && atomic_exchange(&other->asleep, 0)) nmlp_futex_wake(&other->asleep, 1);
}

static uint64_t wait_while(struct worker *self, const _Atomic uint64_t *word, uint64_t old, nmlp_spin *spin) {
    uint64_t now;
    while ((now = atomic_load_explicit(word, memory_order_acquire)) == old) {
        if (nmlp_spin_pause(spin)) continue;
        adapt_spin(self->pool, self);
        sleep_while(self, word, old);
    }
    return now;
}

static nmlp_spin spin_of(const nmlp_pool *pool) {
    return (nmlp_spin){.limit_ns = atomic_load_explicit(&pool->spin_ns, memory_order_relaxed)};
}

/* ---- jobs ---- */

/* Waits for the threads below this one in the tree of those that take part. */
static void join_below(struct worker *self, uint64_t start) {
    nmlp_pool *pool = self->pool;
    int n = active_in(start);
    for (int i = FAN_IN * self->index + 1; i <= FAN_IN * self->index + FAN_IN && i < n; i++) {
        const _Atomic uint64_t *done = &pool->workers[i].done;
        nmlp_spin spin = spin_of(pool);
        for (uint64_t seen = atomic_load_explicit(done, memory_order_acquire); seen != start;)
            seen = wait_while(self, done, seen, &spin);
    }
}

/* ---- memory of the next job ---- */

enum { FETCH_BYTES = 256 }; /* between two looks */

/* Whether a job has started that is this thread's too. */
static bool is_wanted(const struct worker *self, uint64_t seen) {
    uint64_t now = atomic_load_explicit(&self->pool->start, memory_order_relaxed);
    return now != seen && self->index < active_in(now);
}

/* One unit of this thread's share of a part. False: the next job is there. */
static bool fetch_unit(const struct worker *self, uint64_t seen, const char *unit, size_t bytes) {
    for (size_t at = 0; at < bytes; at += FETCH_BYTES) {
        if (is_wanted(self, seen)) return false;
        for (size_t line = 0; line < FETCH_BYTES; line += NMLP_LINE_ALIGN) __builtin_prefetch(unit + at + line, 0, 2);
    }
    return true;
}

/* Some parts side by side, while no more than *left bytes are fetched. False: that is all. */
static bool fetch_parts(const struct worker *self, uint64_t seen, const nmlp_pool_ahead_part *parts, int n_parts,
                        size_t *left) {
    int n = active_in(seen);
    bool more = n_parts > 0;
    for (int64_t i = 0; more; i++) {
        more = false;
        for (int j = 0; j < n_parts; j++) {
            const nmlp_pool_ahead_part *part = &parts[j];
            int64_t at = part->n_units * self->index / n + i;
            if (!part->memory || at >= part->n_units * (self->index + 1) / n) continue;
            if (*left < part->unit_bytes) return false;
            if (!fetch_unit(self, seen, part->memory + part->unit_bytes * (size_t)at, part->unit_bytes)) return false;
            *left -= part->unit_bytes;
            more = true;
        }
    }
    return true;
}

/* Only where nobody else wants this CPU: there, to look for work is all that a thread should do. */
static void fetch_ahead(const struct worker *self, uint64_t seen, const nmlp_pool_ahead *ahead) {
    size_t left = ahead->thread_bytes;
    if (atomic_load_explicit(&self->pool->spin_ns, memory_order_relaxed) < SPIN_MOST_NS) return;
    if (fetch_parts(self, seen, ahead->parts, ahead->n_parts, &left))
        fetch_parts(self, seen, ahead->parts + ahead->n_parts, ahead->n_then, &left);
}

static void *worker_main(void *arg) {
    struct worker *self = arg;
    nmlp_pool *pool = self->pool;
    uint64_t seen = 0;
    if (pool->n_nodes > 1) nmlp_cpus_stay_on_node(nmlp_pool_node(pool, self->index));
    nmlp_spin spin = spin_of(pool);
    for (;;) {
        seen = wait_while(self, &pool->start, seen, &spin);
        if (self->index >= active_in(seen)) continue; /* not for this one, which may fall asleep over it */
        if (!pool->job) return NULL;
        nmlp_pool_ahead ahead = pool->ahead; /* the caller changes it as soon as all are done */
        pool->job(pool->ctx, self->index, active_in(seen));
        join_below(self, seen);
        atomic_store(&self->done, seen);
        tell(&pool->workers[(self->index - 1) / FAN_IN]);
        fetch_ahead(self, seen, &ahead);
        spin = spin_of(pool);
    }
}

static uint64_t announce(nmlp_pool *pool, int n, nmlp_pool_job *job, void *ctx) {
    pool->job = job;
    pool->ctx = ctx;
    uint64_t before = atomic_load_explicit(&pool->start, memory_order_relaxed);
    uint64_t start = ((before >> ACTIVE_BITS) + 1) << ACTIVE_BITS | (uint64_t)n;
    atomic_store(&pool->start, start);
    for (int i = 1; i < n; i++) tell(&pool->workers[i]);
    return start;
}

void nmlp_pool_run_on(nmlp_pool *pool, int n, nmlp_pool_job *job, void *ctx) {
    if (pool && n > pool->n_threads) n = pool->n_threads;
    if (!pool || n <= 1) {
        job(ctx, 0, 1);
        return;
    }
    uint64_t start = announce(pool, n, job, ctx);
    job(ctx, 0, n);
    join_below(&pool->workers[0], start);
}

void nmlp_pool_run(nmlp_pool *pool, nmlp_pool_job *job, void *ctx) {
    nmlp_pool_run_on(pool, nmlp_pool_threads(pool), job, ctx);
}

void nmlp_pool_ahead_then(nmlp_pool_ahead *ahead, const nmlp_pool_ahead *later) {
    for (int i = 0; i < later->n_parts && ahead->n_parts + i < NMLP_POOL_AHEAD_PARTS; i++) {
        ahead->parts[ahead->n_parts + i] = later->parts[i];
        ahead->n_then = i + 1;
    }
}

void nmlp_pool_set_ahead(nmlp_pool *pool, const nmlp_pool_ahead *ahead) {
    if (pool) pool->ahead = ahead ? *ahead : (nmlp_pool_ahead){.n_parts = 0};
}

/* ---- the threads ---- */

static void stop_workers(nmlp_pool *pool, int n_started) {
    if (n_started > 0) announce(pool, n_started + 1, NULL, NULL);
    for (int i = 1; i <= n_started; i++) pthread_join(pool->workers[i].thread, NULL);
}

static nmlp_status start_workers(nmlp_pool *pool, nmlp_err *err) {
    for (int i = 0; i < pool->n_threads; i++) {
        struct worker *worker = &pool->workers[i];
        worker->pool = pool;
        worker->index = i;
        if (i == 0 || pthread_create(&worker->thread, NULL, worker_main, worker) == 0) continue;
        int n_wanted = pool->n_threads;
        pool->n_threads = i;
        return nmlp_fail(err, NMLP_E_LIMIT, "thread %d of %d could not be started", i, n_wanted);
    }
    return NMLP_OK;
}

nmlp_status nmlp_pool_create(nmlp_pool **out, int n_threads, nmlp_err *err) {
    *out = NULL;
    int n_cpus = nmlp_cpus_usable();
    if (n_threads <= 0) n_threads = n_cpus;
    if (n_threads > THREADS_MAX)
        return nmlp_fail(err, NMLP_E_ARG, "%d threads requested, at most %d are supported", n_threads, THREADS_MAX);
    nmlp_pool *pool = nmlp_mem_new(1, sizeof *pool, err);
    if (!pool) return NMLP_E_NOMEM;
    pool->spin_most_ns = n_threads > n_cpus ? SPIN_LEAST_NS : SPIN_MOST_NS;
    atomic_init(&pool->spin_ns, pool->spin_most_ns);
    pool->n_nodes = n_threads > 1 && n_threads <= n_cpus ? nmlp_cpus_nodes() : 1;
    pool->barrier.spin_ns = &pool->spin_ns;
    pool->workers = nmlp_mem_new((size_t)n_threads, sizeof *pool->workers, err);
    nmlp_status st = pool->workers ? NMLP_OK : NMLP_E_NOMEM;
    if (st == NMLP_OK) {
        pool->n_threads = n_threads;
        st = start_workers(pool, err);
    }
    if (st != NMLP_OK) {
        nmlp_pool_destroy(pool);
        return st;
    }
    *out = pool;
    return NMLP_OK;
}

void nmlp_pool_destroy(nmlp_pool *pool) {
    if (!pool) return;
    stop_workers(pool, pool->n_threads - 1);
    nmlp_mem_free(pool->workers);
    nmlp_mem_free(pool);
}

int nmlp_pool_node(const nmlp_pool *pool, int thread) { return pool ? thread * pool->n_nodes / pool->n_threads : 0; }

int nmlp_pool_threads(const nmlp_pool *pool) { return pool ? pool->n_threads : 1; }

const atomic_uint *nmlp_pool_spin_ns(const nmlp_pool *pool) { return &pool->spin_ns; }

/* The n that makes serial_ns / n + n * THREAD_NS least, if that is worth a job. */
int nmlp_pool_width(const nmlp_pool *pool, double serial_ns) {
    int most = nmlp_pool_threads(pool);
    if (most == 1) return 1;
    bool shared = atomic_load_explicit(&pool->spin_ns, memory_order_relaxed) < SPIN_MOST_NS;
    double job_ns = shared ? JOB_NS_SHARED : JOB_NS;
    double best = sqrt(serial_ns / THREAD_NS);
    int n = best < most ? (int)best : most;
    if (n < 2) n = 2;
    return serial_ns / n + job_ns + n * (double)THREAD_NS < serial_ns ? n : 1;
}

/* ---- loops ---- */

struct for_loop {
    nmlp_pool_range *fn;
    void *ctx;
    int64_t n;
    int64_t grain;
    _Atomic int64_t next;
};

static void run_pieces(void *arg, int thread, int n_threads) {
    struct for_loop *loop = arg;
    (void)n_threads;
    for (;;) {
        int64_t begin = atomic_fetch_add_explicit(&loop->next, loop->grain, memory_order_relaxed);
        if (begin >= loop->n) return;
        int64_t end = begin + loop->grain;
        loop->fn(loop->ctx, begin, end < loop->n ? end : loop->n, thread);
    }
}

void nmlp_pool_for(nmlp_pool *pool, int64_t n, int64_t grain, nmlp_pool_range *fn, void *ctx) {
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    if (n <= grain || nmlp_pool_threads(pool) == 1) {
        fn(ctx, 0, n, 0);
        return;
    }
    struct for_loop loop = {.fn = fn, .ctx = ctx, .n = n, .grain = grain};
    int64_t n_pieces = (n - 1) / grain + 1;
    nmlp_pool_run_on(pool, n_pieces < THREADS_MAX ? (int)n_pieces : THREADS_MAX, run_pieces, &loop);
}

void nmlp_pool_barrier(nmlp_pool *pool, int thread, int n_threads) {
    if (pool) nmlp_barrier_wait(&pool->barrier, thread, n_threads);
}
