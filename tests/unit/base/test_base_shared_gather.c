/* Processes gather through shared memory: every one has the parts of all, gather after gather; a stuck one is noticed.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, usleep */
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/shared_gather.h"
#include "lib/testing.h"

enum { MEMBERS_MAX = 4, AREA = 1 << 14, ROUNDS = 600 };

/* Byte i of round `round` in the part of a member. */
static char byte_of(int round, int64_t i) { return (char)(31 * round + 7 * i); }

/* Parts of random sizes, some empty, the same for all. */
static int64_t lay_out(nmlp_rng *rng, int64_t *first, int size) {
    first[0] = 0;
    for (int k = 0; k < size; k++) first[k + 1] = first[k] + (int64_t)nmlp_rng_below(rng, AREA / MEMBERS_MAX);
    return first[size];
}

static int work(void *memory, int rank, int size, unsigned spin_ns) {
    static char data[AREA];
    nmlp_shared_gather g;
    nmlp_rng rng, own;
    nmlp_shared_gather_open(&g, memory, AREA, rank, size);
    g.spin_ns = spin_ns;
    nmlp_rng_seed(&rng, 5);
    nmlp_rng_seed(&own, (uint64_t)rank);
    for (int round = 0; round < ROUNDS; round++) {
        int64_t first[MEMBERS_MAX + 1], n = lay_out(&rng, first, size);
        memset(data, 0, sizeof data);
        for (int64_t i = first[rank]; i < first[rank + 1]; i++) data[i] = byte_of(round, i);
        if (nmlp_rng_below(&own, 100) == 0) usleep(500); /* now and then somebody is late */
        if (!nmlp_shared_gather_run(&g, data, first, 60)) return 2;
        for (int64_t i = 0; i < n; i++)
            if (data[i] != byte_of(round, i)) return 1;
    }
    return 0;
}

static void *new_memory(void) {
    void *memory =
        mmap(NULL, nmlp_shared_gather_bytes(AREA), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

static void all_have_the_parts_of_all(void **state) {
    (void)state;
    for (int size = 1; size <= MEMBERS_MAX; size++)
        for (unsigned spin_ns = 0; spin_ns <= 20000; spin_ns += 20000) {
            void *memory = new_memory();
            pid_t children[MEMBERS_MAX];
            for (int k = 0; k < size; k++) {
                children[k] = fork();
                assert_true(children[k] >= 0);
                if (children[k] == 0) _exit(work(memory, k, size, spin_ns));
            }
            for (int k = 0; k < size; k++) {
                int status = 0;
                assert_int_equal(waitpid(children[k], &status, 0), children[k]);
                assert_true(WIFEXITED(status));
                assert_int_equal(WEXITSTATUS(status), 0);
            }
            munmap(memory, nmlp_shared_gather_bytes(AREA));
        }
}

static void count_idle(void *ctx) { ++*(int *)ctx; }

static void who_does_not_come_is_noticed(void **state) {
    nmlp_shared_gather g;
    char data[2] = {1, 0};
    int64_t first[] = {0, 1, 2};
    int n_idle = 0;
    (void)state;
    void *memory = new_memory();
    nmlp_shared_gather_open(&g, memory, AREA, 0, 2);
    g.idle = count_idle;
    g.ctx = &n_idle;
    double begin = nmlp_clock_seconds();
    assert_false(nmlp_shared_gather_run(&g, data, first, 0.1));
    assert_true(nmlp_clock_seconds() - begin >= 0.1);
    assert_true(n_idle > 0);
    munmap(memory, nmlp_shared_gather_bytes(AREA));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_have_the_parts_of_all),
        cmocka_unit_test(who_does_not_come_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
