#define _GNU_SOURCE /* sched_getaffinity */
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/mem.h"

/* Waiting threads spin this often before they sleep: a token takes many short jobs, and waking a sleeper costs
 * more than most of them. */
enum { SPIN_LIMIT = 4000, THREADS_MAX = 1024 };

struct nmlp_pool {
    int n_threads;
    pthread_t *threads; /* n_threads - 1 workers */
    struct worker *workers;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_uint generation; /* counts jobs; workers wait for it to move */
    atomic_int n_running;   /* workers not yet done with the job */
    nmlp_barrier barrier;
    atomic_bool stop;
    nmlp_pool_job *job;
    void *ctx;
};

struct worker {
    nmlp_pool *pool;
    int index;
};

static void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void wait_for_job(nmlp_pool *pool, unsigned seen) {
    for (int i = 0; i < SPIN_LIMIT; i++) {
        if (atomic_load_explicit(&pool->generation, memory_order_acquire) != seen) return;
        cpu_relax();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load_explicit(&pool->generation, memory_order_acquire) == seen)
        pthread_cond_wait(&pool->wake, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker_main(void *arg) {
    struct worker *worker = arg;
    nmlp_pool *pool = worker->pool;
    unsigned seen = 0;
    for (;;) {
        wait_for_job(pool, seen);
        seen = atomic_load_explicit(&pool->generation, memory_order_acquire);
        if (atomic_load_explicit(&pool->stop, memory_order_acquire)) return NULL;
        pool->job(pool->ctx, worker->index, pool->n_threads);
        atomic_fetch_sub_explicit(&pool->n_running, 1, memory_order_release);
    }
}

static void announce(nmlp_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add_explicit(&pool->generation, 1, memory_order_release);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

static int usable_cpus(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

static void stop_workers(nmlp_pool *pool, int n_started) {
    atomic_store_explicit(&pool->stop, true, memory_order_release);
    announce(pool);
    for (int i = 0; i < n_started; i++) pthread_join(pool->threads[i], NULL);
}

nmlp_status nmlp_pool_create(nmlp_pool **out, int n_threads, nmlp_err *err) {
    *out = NULL;
    if (n_threads <= 0) n_threads = usable_cpus();
    if (n_threads > THREADS_MAX)
        return nmlp_fail(err, NMLP_E_ARG, "%d threads requested, at most %d are supported", n_threads, THREADS_MAX);
    nmlp_pool *pool = nmlp_mem_new(1, sizeof *pool, err);
    if (!pool) return NMLP_E_NOMEM;
    pool->n_threads = n_threads;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->threads = nmlp_mem_new((size_t)n_threads, sizeof *pool->threads, err);
    pool->workers = nmlp_mem_new((size_t)n_threads, sizeof *pool->workers, err);
    nmlp_status st = pool->threads && pool->workers ? NMLP_OK : NMLP_E_NOMEM;
    int n_started = 0;
    while (st == NMLP_OK && n_started < n_threads - 1) {
        pool->workers[n_started] = (struct worker){.pool = pool, .index = n_started + 1};
        if (pthread_create(&pool->threads[n_started], NULL, worker_main, &pool->workers[n_started]) != 0)
            st = nmlp_fail(err, NMLP_E_LIMIT, "thread %d of %d could not be started", n_started + 1, n_threads);
        else
            n_started++;
    }
    if (st != NMLP_OK) {
        pool->n_threads = n_started + 1;
        nmlp_pool_destroy(pool);
        return st;
    }
    *out = pool;
    return NMLP_OK;
}

void nmlp_pool_destroy(nmlp_pool *pool) {
    if (!pool) return;
    stop_workers(pool, pool->n_threads - 1);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    nmlp_mem_free(pool->threads);
    nmlp_mem_free(pool->workers);
    nmlp_mem_free(pool);
}

int nmlp_pool_threads(const nmlp_pool *pool) { return pool ? pool->n_threads : 1; }

void nmlp_pool_run(nmlp_pool *pool, nmlp_pool_job *job, void *ctx) {
    if (!pool || pool->n_threads == 1) {
        job(ctx, 0, 1);
        return;
    }
    pool->job = job;
    pool->ctx = ctx;
    atomic_store_explicit(&pool->n_running, pool->n_threads - 1, memory_order_relaxed);
    announce(pool);
    job(ctx, 0, pool->n_threads);
    for (int i = 0; atomic_load_explicit(&pool->n_running, memory_order_acquire) != 0; i++) {
        if (i < SPIN_LIMIT) {
            cpu_relax();
        } else {
            sched_yield();
        }
    }
}

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
    nmlp_pool_run(pool, run_pieces, &loop);
}

void nmlp_pool_barrier(nmlp_pool *pool) {
    if (pool) nmlp_barrier_wait(&pool->barrier, pool->n_threads);
}

unsigned nmlp_barrier_arrive(nmlp_barrier *barrier, int n_threads) {
    unsigned generation = atomic_load_explicit(&barrier->generation, memory_order_acquire);
    if (atomic_fetch_add_explicit(&barrier->n_arrived, 1, memory_order_acq_rel) == n_threads - 1) {
        atomic_store_explicit(&barrier->n_arrived, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&barrier->generation, 1, memory_order_release);
    }
    return generation;
}

bool nmlp_barrier_passed(const nmlp_barrier *barrier, unsigned arrival) {
    return atomic_load_explicit(&barrier->generation, memory_order_acquire) != arrival;
}

void nmlp_barrier_await(const nmlp_barrier *barrier, unsigned arrival) {
    for (int i = 0; !nmlp_barrier_passed(barrier, arrival); i++) {
        if (i < SPIN_LIMIT) {
            cpu_relax();
        } else {
            sched_yield();
        }
    }
}

void nmlp_barrier_wait(nmlp_barrier *barrier, int n_threads) {
    if (n_threads > 1) nmlp_barrier_await(barrier, nmlp_barrier_arrive(barrier, n_threads));
}
