/* Processes that share a model in each of the ways there are compute what one computes, with as many messages as said.
 */
#include <math.h>

#include "base/mem.h"
#include "engine/backend.h"
#include "engine/batch.h"
#include "engine/split_choice.h"
#include "lib/loaded_engine.h"
#include "lib/testing.h"
#include "lib/thread_group.h"
#include "lib/tiny_checkpoint.h"
#include "model/model_shard.h"

enum { PROMPT = 9, STEPS = 3, VALUES = (1 + STEPS) * TINY_VOCAB };

static const int32_t ids[PROMPT + STEPS] = {3, 17, 40, 5, 22, 61, 8, 8, 30, 11, 2, 57};

/* gate and up of a layer with one v between them. */
static void share_basis(tiny_checkpoint *c, int layer, int64_t rank) {
    char name[96];
    tiny_factorise(c, layer, "gate_proj", rank, NULL);
    tiny_factorise(c, layer, "up_proj", rank, NULL);
    snprintf(name, sizeof name, "model.layers.%d.mlp.up_proj.v", layer);
    tiny_remove(c, name);
    snprintf(name, sizeof name, "model.layers.%d.mlp.gate_proj.v", layer);
    tiny_tensor *v = tiny_find(c, name);
    snprintf(v->name, sizeof v->name, "model.layers.%d.mlp.gate_up_proj.v", layer);
}

/* What each layer has: [0] and [1]. */
enum form { ALL_FACTORS, SHARED_AND_DENSE_DOWN, DENSE_GATE, FORMS };

static tiny_fixture *make(enum form form) {
    tiny_fixture *f = tiny_fixture_create(7);
    for (int l = 0; l < TINY_LAYERS; l++) {
        if (form == SHARED_AND_DENSE_DOWN) {
            share_basis(&f->c, l, 5);
            continue;
        }
        if (form == ALL_FACTORS) tiny_factorise(&f->c, l, "gate_proj", 7, NULL);
        tiny_factorise(&f->c, l, "up_proj", 6, NULL);
        tiny_factorise(&f->c, l, "down_proj", 9, NULL);
    }
    tiny_mark_compressed(&f->c);
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    return f;
}

struct job {
    const char *dir;
    const char *split;
    float logits[THREAD_GROUP_MAX][VALUES];
    nmlp_cluster_split chosen[THREAD_GROUP_MAX];
};

/* Logits behind the prompt and behind each of the tokens that follow. */
static void compute(float *logits, nmlp_engine *engine) {
    nmlp_batch *batch;
    nmlp_err err;
    int32_t sequence;
    nmlp_batch_options options = {.context = 32, .max_sequences = 1};
    nmlp_assert_ok(nmlp_batch_create(&batch, engine, &options, &err), &err);
    nmlp_assert_ok(nmlp_batch_open(batch, NULL, 0, &sequence, &err), &err);
    nmlp_assert_ok(nmlp_batch_append(batch, sequence, ids, PROMPT, logits, NULL, &err), &err);
    for (int i = 0; i < STEPS; i++)
        nmlp_assert_ok(
            nmlp_batch_append(batch, sequence, &ids[PROMPT + i], 1, logits + (1 + i) * TINY_VOCAB, NULL, &err), &err);
    nmlp_batch_destroy(batch);
}

static void work(void *ctx, const nmlp_process_group *group) {
    struct job *job = ctx;
    nmlp_model whole;
    nmlp_model_shard *shard;
    nmlp_engine *engine;
    nmlp_split_choice choice = {0};
    nmlp_err err;
    nmlp_cluster_split splits[TINY_LAYERS];
    nmlp_assert_ok(nmlp_model_open(&whole, job->dir, &err), &err);
    if (strcmp(job->split, "auto") == 0)
        nmlp_assert_ok(nmlp_split_choose(&choice, &whole, job->split, group, NULL, &err), &err);
    for (int l = 0; l < TINY_LAYERS; l++)
        splits[l] = choice.splits ? choice.splits[l] : nmlp_cluster_split_find(job->split);
    job->chosen[group->rank] = splits[0];
    nmlp_assert_ok(nmlp_model_shard_create(&shard, &whole, group->rank, group->size, splits, NULL, &err), &err);
    nmlp_engine_options options = {.tensor_group = group, .isa = "ref"};
    nmlp_assert_ok(nmlp_engine_create(&engine, &shard->model, &options, &err), &err);
    compute(job->logits[group->rank], engine);
    nmlp_engine_destroy(engine);
    nmlp_model_shard_destroy(shard);
    nmlp_split_choice_fini(&choice);
    nmlp_model_close(&whole);
}

static void assert_near(const float *got, const float *want, const char *what, int size) {
    double worst = 0, most = 0;
    for (int i = 0; i < VALUES; i++) {
        worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
        most = fmax(most, fabs((double)want[i]));
    }
    if (!(worst <= 1e-5 * most)) fail_msg("%s on %d: off by %g of %g", what, size, worst, most);
}

/* Waits of a step: attention and MLP of each layer, then the logits. Norms have none. */
static int64_t waits_of(enum form form, const char *split) {
    int mlp = 1;
    if (strcmp(split, "all") == 0) mlp = form == SHARED_AND_DENSE_DOWN ? 2 : 3;
    return TINY_LAYERS * (1 + mlp) + 1;
}

static void every_split_computes_the_same(void **state) {
    static const char *const names[] = {"dense", "replicated", "all"};
    static struct job job;
    float want[VALUES];
    (void)state;
    for (int form = 0; form < FORMS; form++) {
        tiny_fixture *f = make(form);
        loaded_engine one;
        loaded_engine_open(&one, f->dir, "ref", 1);
        compute(want, one.engine);
        loaded_engine_close(&one);
        for (int size = 2; size <= 4; size += 2)
            for (int s = 0; s < 3; s++) {
                job = (struct job){.dir = f->dir, .split = names[s]};
                int64_t calls = thread_group_run(size, work, &job);
                for (int k = 0; k < size; k++) {
                    assert_near(job.logits[k], want, names[s], size);
                    assert_memory_equal(job.logits[k], job.logits[0], sizeof job.logits[0]);
                }
                assert_int_equal(calls, (1 + STEPS) * waits_of(form, names[s]));
            }
        tiny_fixture_destroy(f);
    }
}

static void all_choose_alike(void **state) {
    static struct job job;
    (void)state;
    tiny_fixture *f = make(ALL_FACTORS);
    job = (struct job){.dir = f->dir, .split = "auto"};
    thread_group_run(4, work, &job);
    for (int k = 1; k < 4; k++) assert_int_equal(job.chosen[k], job.chosen[0]);
    tiny_fixture_destroy(f);
}

/* Of the Llama-3.1-8B shape on computers that wait and read for as long as said. */
static nmlp_cluster_split best_of(double latency_us, int64_t nodes, int64_t rank) {
    nmlp_config c = {.hidden = 4096, .intermediate = 14336, .n_heads = 32, .n_kv_heads = 8, .head_dim = 128};
    nmlp_cluster_spec spec = {.nodes = nodes, .latency_us = latency_us, .gbit = 10, .read_gbs = 100, .bits = 16};
    nmlp_cluster_mlp mlp = {.gate = rank, .up = rank, .down = rank};
    int best = NMLP_CLUSTER_SPLIT_DENSE;
    for (int k = 0; k < NMLP_CLUSTER_SPLIT_SLICES; k++)
        if (nmlp_cluster_layer_time(&spec, nodes, &c, &mlp, k, 0).ms <
            nmlp_cluster_layer_time(&spec, nodes, &c, &mlp, best, 0).ms)
            best = k;
    return best;
}

static void latency_decides(void **state) {
    (void)state;
    assert_int_equal(best_of(30, 4, 2432), NMLP_CLUSTER_SPLIT_ALL);          /* 38 ms, dense 42, replicated 50 */
    assert_int_equal(best_of(100, 8, 2432), NMLP_CLUSTER_SPLIT_DENSE);       /* 32 ms, all 34 */
    assert_int_equal(best_of(3000, 2, 1536), NMLP_CLUSTER_SPLIT_REPLICATED); /* four waits instead of two cost more */
}

/* Every slice has thin factors of its own: 3 [r,H] each, and a node with one of four slices reads one of each. */
static void slices_have_factors_each(void **state) {
    nmlp_config c = {.hidden = 1024, .intermediate = 4096, .n_heads = 4, .n_kv_heads = 4, .head_dim = 256};
    nmlp_cluster_spec spec = {.nodes = 4, .latency_us = 1, .gbit = 1, .read_gbs = 1, .bits = 16};
    nmlp_cluster_mlp mlp = {.gate = 100, .up = 100, .down = 100, .slices = 4};
    double attention = 4.0 * 1024 * 1024 / 4, slice = 3.0 * 100 * (1024 + 1024);
    (void)state;
    double ms = nmlp_cluster_layer_time(&spec, 4, &c, &mlp, NMLP_CLUSTER_SPLIT_SLICES, 0).read_ms;
    assert_true(fabs(ms - 2e-6 * (attention + slice)) < 1e-9);
}

static void what_cannot_be_shared_is_named(void **state) {
    nmlp_model whole;
    nmlp_model_shard *shard;
    nmlp_split_choice choice;
    nmlp_err err;
    nmlp_process_group alone = {.size = 2};
    (void)state;
    tiny_fixture *f = tiny_fixture_create(7);
    for (int l = 0; l < TINY_LAYERS; l++) tiny_factorise(&f->c, l, "up_proj", 3, NULL);
    tiny_mark_compressed(&f->c);
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    nmlp_assert_ok(nmlp_model_open(&whole, f->dir, &err), &err);
    nmlp_cluster_split all[TINY_LAYERS] = {NMLP_CLUSTER_SPLIT_ALL, NMLP_CLUSTER_SPLIT_ALL};
    assert_int_equal(nmlp_model_shard_create(&shard, &whole, 0, 4, all, NULL, &err), NMLP_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "layer 0 cannot be shared by 4 processes as \"all\""));
    whole.config.n_experts = 2;
    assert_int_equal(nmlp_model_shard_create(&shard, &whole, 0, 2, NULL, NULL, &err), NMLP_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "experts are not shared by processes"));
    whole.config.n_experts = 0;
    assert_int_equal(nmlp_split_choose(&choice, &whole, "slices", &alone, NULL, &err), NMLP_E_ARG);
    assert_string_equal(err.field, "split");
    nmlp_model_close(&whole);
    tiny_fixture_destroy(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_computes_the_same),
        cmocka_unit_test(all_choose_alike),
        cmocka_unit_test(latency_decides),
        cmocka_unit_test(slices_have_factors_each),
        cmocka_unit_test(what_cannot_be_shared_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
