/* Running a kernel takes no memory: allocation functions are wrapped by the linker and counted. */
#include "base/mem.h"
#include "lib/alloc_count.h"
#include "lib/testing.h"
#include "lib/truth.h"

enum { S = 60, H = 64, I = 96, R = 32, HEADS = 2, DIM = 32 };

struct operands {
    nmlp_linear *linear;
    nmlp_mlp *mlp;
    nmlp_attention attention;
    float *x;
    float *y;
    void *workspace;
};

static size_t max2(size_t a, size_t b) { return a > b ? a : b; }

static void run_all(const struct operands *o, int64_t s, nmlp_pool *pool) {
    nmlp_attention attention = o->attention;
    attention.s = s;
    nmlp_linear_run(o->linear, o->y, o->x, s, o->workspace, pool);
    nmlp_mlp_run(o->mlp, o->y, o->x, s, o->workspace, pool);
    nmlp_kv_store(&attention.kv, o->x, o->x, 0, s);
    nmlp_attention_run(&attention, o->workspace, pool);
    nmlp_rmsnorm(o->y, o->x, o->x, 1e-5f, s, H, pool);
    nmlp_rope(o->y, &(nmlp_rotation){o->x, H}, s, 0, 1, H, pool);
    nmlp_add(o->y, o->x, s * H, pool);
}

static void runs_do_not_allocate(void **state) {
    (void)state;
    nmlp_err err;
    nmlp_pool *pool = nmlp_test_pool(2);
    nmlp_view w = nmlp_test_weight(H, H, NMLP_DTYPE_BF16, 1);
    nmlp_view u = nmlp_test_weight(I, R, NMLP_DTYPE_BF16, 2);
    nmlp_view v = nmlp_test_weight(R, H, NMLP_DTYPE_BF16, 3);
    nmlp_view d = nmlp_test_weight(H, I, NMLP_DTYPE_BF16, 4);
    nmlp_mlp_desc desc = {.gate = {.u = u, .v = v}, .up = {.u = u, .v = v}, .down = {.w = d}};
    struct operands o = {.x = nmlp_test_floats(S * H, 5), .y = nmlp_test_floats(S * H, 6)};
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set) continue;
        o.attention = (nmlp_attention){.out = o.y,
                                       .q = o.x,
                                       .kv = {.kernels = set, .len = S, .n_heads = 1, .head_dim = DIM},
                                       .s = S,
                                       .n_heads = HEADS,
                                       .scale = 1.0f};
        o.attention.kv.memory = nmlp_mem_new(1, nmlp_kv_bytes(&o.attention.kv), NULL);
        nmlp_assert_ok(nmlp_linear_create(&o.linear, set, &w, NULL, pool, &err), &err);
        nmlp_assert_ok(nmlp_mlp_create(&o.mlp, set, &desc, pool, &err), &err);
        size_t bytes = max2(nmlp_linear_workspace_bytes(o.linear, S, 2), nmlp_mlp_workspace_bytes(o.mlp, S, 2));
        bytes = max2(bytes, nmlp_attention_workspace_bytes(&o.attention, 2));
        o.workspace = nmlp_mem_new(1, bytes, NULL);
        int before = nmlp_test_allocations();
        assert_true(before > 0); /* the counter counts */
        run_all(&o, S, pool);
        run_all(&o, 1, pool);
        assert_int_equal(nmlp_test_allocations(), before);
        nmlp_linear_destroy(o.linear);
        nmlp_mlp_destroy(o.mlp);
        nmlp_mem_free(o.workspace);
        nmlp_mem_free(o.attention.kv.memory);
    }
    nmlp_mem_free(o.x);
    nmlp_mem_free(o.y);
    nmlp_test_weight_free(&w);
    nmlp_test_weight_free(&u);
    nmlp_test_weight_free(&v);
    nmlp_test_weight_free(&d);
    nmlp_pool_destroy(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(runs_do_not_allocate)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
