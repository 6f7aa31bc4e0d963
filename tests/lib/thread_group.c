#define _POSIX_C_SOURCE 200809L /* barriers */
#include "lib/thread_group.h"

#include <pthread.h>
#include <string.h>

#include "lib/testing.h"

/* Members leave pointers here and wait for each other. */
struct board {
    pthread_barrier_t barrier;
    int size;
    const char *sent[THREAD_GROUP_MAX];
    char *places[THREAD_GROUP_MAX];
};

struct member {
    struct board *board;
    nmlp_process_group group;
    int64_t n_calls;
    thread_group_work *work;
    void *ctx;
};

static nmlp_status gather(void *ctx, void *data, const int64_t *first, nmlp_err *err) {
    struct member *m = ctx;
    struct board *b = m->board;
    (void)err;
    m->n_calls++;
    b->places[m->group.rank] = data;
    pthread_barrier_wait(&b->barrier);
    for (int k = 0; k < b->size; k++) /* own items to member k */
        if (k != m->group.rank)
            memcpy(b->places[k] + first[m->group.rank], (char *)data + first[m->group.rank],
                   (size_t)(first[m->group.rank + 1] - first[m->group.rank]));
    pthread_barrier_wait(&b->barrier);
    return NMLP_OK;
}

static nmlp_status exchange(void *ctx, void *received, const void *data, const int64_t *first, nmlp_err *err) {
    struct member *m = ctx;
    struct board *b = m->board;
    int64_t begin = first[m->group.rank], mine = first[m->group.rank + 1] - begin;
    (void)err;
    m->n_calls++;
    b->sent[m->group.rank] = data;
    pthread_barrier_wait(&b->barrier);
    for (int k = 0; k < b->size && mine > 0; k++) memcpy((char *)received + k * mine, b->sent[k] + begin, (size_t)mine);
    pthread_barrier_wait(&b->barrier);
    return NMLP_OK;
}

static nmlp_status broadcast(void *ctx, void *data, int64_t bytes, nmlp_err *err) {
    struct member *m = ctx;
    struct board *b = m->board;
    (void)err;
    m->n_calls++;
    b->sent[m->group.rank] = data;
    pthread_barrier_wait(&b->barrier);
    if (m->group.rank > 0) memcpy(data, b->sent[0], (size_t)bytes);
    pthread_barrier_wait(&b->barrier);
    return NMLP_OK;
}

static void *run_member(void *ctx) {
    struct member *m = ctx;
    m->work(m->ctx, &m->group);
    return NULL;
}

int64_t thread_group_run(int size, thread_group_work *work, void *ctx) {
    struct board board = {.size = size};
    struct member members[THREAD_GROUP_MAX];
    pthread_t threads[THREAD_GROUP_MAX];
    pthread_barrier_init(&board.barrier, NULL, (unsigned)size);
    for (int k = 0; k < size; k++) {
        struct member *m = &members[k];
        *m = (struct member){.board = &board, .work = work, .ctx = ctx};
        m->group = (nmlp_process_group){.rank = k,
                                        .size = size,
                                        .gather = gather,
                                        .exchange = exchange,
                                        .broadcast = broadcast,
                                        .await = broadcast,
                                        .ctx = m};
    }
    for (int k = 0; k < size; k++) assert_int_equal(pthread_create(&threads[k], NULL, run_member, &members[k]), 0);
    for (int k = 0; k < size; k++) pthread_join(threads[k], NULL);
    pthread_barrier_destroy(&board.barrier);
    return members[0].n_calls;
}
