/* What is built on a transport's three collectives, here between threads of this process. */
#include "base/process_group.h"
#include "base/rng.h"
#include "lib/testing.h"
#include "lib/thread_group.h"

enum { MEMBERS_MAX = THREAD_GROUP_MAX, VALUES = 3 * (1 << 20) + 17 };

struct member {
    float *values;
    int64_t n;
    bool flag;
    int32_t word;
    double *items;
    int32_t given[3];                  /* by member 1 */
    int32_t dealt[7];                  /* member k fills k, k + size, ... */
    int32_t collected[MEMBERS_MAX][2]; /* at member 1 */
    nmlp_status status;
};

static void work(void *ctx, const nmlp_process_group *group) {
    struct member *m = &((struct member *)ctx)[group->rank];
    int64_t first[MEMBERS_MAX + 1];
    nmlp_err err;
    for (int k = 0; k <= group->size; k++) first[k] = nmlp_group_share(group, 11, k);
    m->status = nmlp_group_sum_f32(group, m->values, m->n, &err);
    if (m->status == NMLP_OK) m->status = nmlp_group_any(group, &m->flag, &err);
    if (m->status == NMLP_OK) m->status = nmlp_group_broadcast(group, &m->word, sizeof m->word, &err);
    if (m->status == NMLP_OK) m->status = nmlp_group_gather(group, m->items, sizeof *m->items, first, &err);
    if (m->status == NMLP_OK) m->status = nmlp_group_give(group, m->given, sizeof m->given, 1, &err);
    if (m->status == NMLP_OK) m->status = nmlp_group_gather_dealt(group, m->dealt, sizeof m->dealt[0], 7, &err);
    int32_t pair[2] = {group->rank, -group->rank};
    if (m->status == NMLP_OK) m->status = nmlp_group_collect(group, m->collected, pair, sizeof pair, 1, &err);
    if (m->status == NMLP_OK) m->status = nmlp_group_meet(group, &err);
}

static void run_members(struct member *members, int size, int64_t n, int who_says_yes) {
    nmlp_process_group shape = {.size = size};
    for (int k = 0; k < size; k++) {
        struct member *m = &members[k];
        nmlp_rng rng;
        nmlp_rng_seed(&rng, (uint64_t)k);
        *m = (struct member){.n = n, .flag = k == who_says_yes, .word = 100 + k};
        m->values = test_malloc((size_t)n * sizeof *m->values);
        for (int64_t i = 0; i < n; i++) m->values[i] = (float)(nmlp_rng_uniform(&rng) - 0.5) * (float)(1 << (i % 20));
        for (int i = 0; i < 3; i++) m->given[i] = 10 * k + i;
        for (int i = k; i < 7; i += size) m->dealt[i] = 100 + i;
        m->items = test_calloc(11, sizeof *m->items);
        for (int64_t i = nmlp_group_share(&shape, 11, k); i < nmlp_group_share(&shape, 11, k + 1); i++)
            m->items[i] = 0.5 + (double)i;
    }
    thread_group_run(size, work, members);
}

static void free_members(struct member *members, int size) {
    for (int k = 0; k < size; k++) {
        test_free(members[k].values);
        test_free(members[k].items);
    }
}

/* Every member has v0 + v1 + ... in this order, to the bit. */
static void sums_are_in_the_order_of_ranks(void **state) {
    const int64_t counts[] = {1, 2, 7, VALUES};
    (void)state;
    for (int size = 2; size <= MEMBERS_MAX; size++) {
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            struct member members[MEMBERS_MAX];
            nmlp_rng rngs[MEMBERS_MAX];
            run_members(members, size, counts[c], -1);
            for (int k = 0; k < size; k++) nmlp_rng_seed(&rngs[k], (uint64_t)k);
            for (int64_t i = 0; i < counts[c]; i++) {
                float sum = 0;
                for (int k = 0; k < size; k++) {
                    float v = (float)(nmlp_rng_uniform(&rngs[k]) - 0.5) * (float)(1 << (i % 20));
                    sum = k ? sum + v : v;
                }
                for (int k = 0; k < size; k++)
                    if (memcmp(&members[k].values[i], &sum, sizeof sum) != 0)
                        fail_msg("%d members, %lld values: value %lld of member %d is %g, not %g", size,
                                 (long long)counts[c], (long long)i, k, members[k].values[i], sum);
            }
            free_members(members, size);
        }
    }
}

static void all_learn_what_one_knows(void **state) {
    (void)state;
    for (int size = 2; size <= MEMBERS_MAX; size++) {
        for (int yes = -1; yes < size; yes++) {
            struct member members[MEMBERS_MAX];
            run_members(members, size, 1, yes);
            for (int k = 0; k < size; k++) {
                assert_int_equal(members[k].status, NMLP_OK);
                assert_int_equal(members[k].flag, yes >= 0);
                assert_int_equal(members[k].word, 100);
                for (int i = 0; i < 11; i++) assert_float_equal(members[k].items[i], 0.5 + i, 0);
                for (int i = 0; i < 3; i++) assert_int_equal(members[k].given[i], 10 + i);
                for (int i = 0; i < 7; i++) assert_int_equal(members[k].dealt[i], 100 + i);
                assert_int_equal(members[1].collected[k][0], k);
                assert_int_equal(members[1].collected[k][1], -k);
            }
            free_members(members, size);
        }
    }
}

static void shares_cover_everything_once(void **state) {
    (void)state;
    for (int size = 1; size <= 7; size++) {
        nmlp_process_group group = {.size = size};
        for (int64_t n = 0; n < 40; n++) {
            assert_int_equal(nmlp_group_share(&group, n, 0), 0);
            assert_int_equal(nmlp_group_share(&group, n, size), n);
            for (int k = 0; k < size; k++) {
                int64_t share = nmlp_group_share(&group, n, k + 1) - nmlp_group_share(&group, n, k);
                assert_in_range(share, n / size, n / size + 1);
            }
        }
    }
}

static void one_process_needs_no_group(void **state) {
    nmlp_err err;
    float value = 3;
    bool flag = true;
    (void)state;
    assert_int_equal(nmlp_group_sum_f32(NULL, &value, 1, &err), NMLP_OK);
    assert_int_equal(nmlp_group_any(NULL, &flag, &err), NMLP_OK);
    assert_float_equal(value, 3, 0);
    assert_true(flag);
    assert_int_equal(nmlp_group_share(NULL, 9, 1), 9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_in_the_order_of_ranks),
        cmocka_unit_test(all_learn_what_one_knows),
        cmocka_unit_test(shares_cover_everything_once),
        cmocka_unit_test(one_process_needs_no_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
