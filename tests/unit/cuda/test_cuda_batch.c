/* Many sequences at once on the GPU: every sequence against the CPU engine in f32 running it alone, whatever its
 * company and however its text is cut; choices made on the device; forks; a pool that is used up. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "cuda/cuda.h"
#include "engine/backend.h"
#include "engine/batch.h"
#include "lib/gpu.h"
#include "lib/loaded_engine.h"
#include "lib/testing.h"
#include "lib/tiny_checkpoint.h"
#include "model/preset.h"

enum { SEQUENCES_MAX = 40, TOKENS = 90 };

/* A model on both sides, random texts, and the CPU's logits of all their positions. */
struct both {
    loaded_engine cpu;
    nmlp_engine *gpu;
    nmlp_batch *batch;
    int64_t vocab;
    int n;
    int32_t ids[SEQUENCES_MAX][TOKENS];
    float *want[SEQUENCES_MAX]; /* [TOKENS, V] */
    int32_t sequence[SEQUENCES_MAX];
    int64_t length[SEQUENCES_MAX];
    float *got; /* [TOKENS, V] */
    double tolerance;
};

static void open_both(struct both *b, const char *dir, int n, const nmlp_batch_options *limits, double tolerance) {
    nmlp_err err;
    nmlp_rng rng;
    memset(b, 0, sizeof *b);
    loaded_engine_open(&b->cpu, dir, NULL, 0);
    nmlp_engine_options options = {.backend = nmlp_backend_cuda(), .pool = b->cpu.pool};
    nmlp_assert_ok(nmlp_engine_create(&b->gpu, &b->cpu.model, &options, &err), &err);
    nmlp_assert_ok(nmlp_batch_create(&b->batch, b->gpu, limits, &err), &err);
    b->vocab = b->cpu.model.config.vocab;
    b->n = n;
    b->tolerance = tolerance;
    nmlp_rng_seed(&rng, 5);
    for (int s = 0; s < n; s++) {
        for (int i = 0; i < TOKENS; i++) b->ids[s][i] = (int32_t)nmlp_rng_below(&rng, (uint64_t)b->vocab);
        b->want[s] = loaded_engine_logits(&b->cpu, b->ids[s], TOKENS, 0);
        nmlp_assert_ok(nmlp_batch_open(b->batch, NULL, 0, &b->sequence[s], &err), &err);
    }
    b->got = nmlp_mem_new((size_t)(SEQUENCES_MAX * b->vocab), sizeof *b->got, NULL);
}

static void close_both(struct both *b) {
    for (int s = 0; s < b->n; s++) nmlp_mem_free(b->want[s]);
    nmlp_mem_free(b->got);
    nmlp_batch_destroy(b->batch);
    nmlp_engine_destroy(b->gpu);
    loaded_engine_close(&b->cpu);
}

/* Largest difference over largest logit. */
static void check_row(const struct both *b, const float *got, int s, int64_t position) {
    const float *want = b->want[s] + position * b->vocab;
    double largest = 0;
    double worst = 0;
    for (int64_t i = 0; i < b->vocab; i++) {
        largest = fmax(largest, fabs((double)want[i]));
        worst = fmax(worst, isfinite(got[i]) ? fabs((double)got[i] - (double)want[i]) : INFINITY);
    }
    if (!(worst <= b->tolerance * largest))
        fail_msg("sequence %d position %lld: logits differ by %g of %g", s, (long long)position, worst, largest);
}

/* One step: n[s] tokens of sequence s (0: none), the logits of the last one of each compared. */
static void step(struct both *b, const int64_t *n) {
    nmlp_step_item items[SEQUENCES_MAX] = {{0}};
    int of[SEQUENCES_MAX];
    int64_t n_items = 0;
    nmlp_err err;
    for (int s = 0; s < b->n; s++) {
        if (n[s] == 0) continue;
        items[n_items] = (nmlp_step_item){.sequence = b->sequence[s],
                                          .ids = b->ids[s] + b->length[s],
                                          .n = n[s],
                                          .n_logits = 1,
                                          .logits = b->got + n_items * b->vocab};
        of[n_items++] = s;
    }
    nmlp_assert_ok(nmlp_batch_step(b->batch, items, n_items, &err), &err);
    for (int64_t i = 0; i < n_items; i++) {
        b->length[of[i]] += items[i].n;
        check_row(b, b->got + i * b->vocab, of[i], b->length[of[i]] - 1);
    }
}

/* Random amounts of random sequences until all texts are done. Above `most` rows nothing is added to a step. */
static void run_schedule(struct both *b, int64_t most, uint64_t seed) {
    nmlp_rng rng;
    nmlp_rng_seed(&rng, seed);
    for (;;) {
        int64_t n[SEQUENCES_MAX] = {0};
        int64_t rows = 0;
        bool done = true;
        for (int s = 0; s < b->n; s++) {
            int64_t left = TOKENS - b->length[s];
            done = done && left == 0;
            if (left == 0 || nmlp_rng_below(&rng, 4) == 0) continue;
            int64_t wanted = nmlp_rng_below(&rng, 2) ? 1 : 1 + (int64_t)nmlp_rng_below(&rng, 70);
            n[s] = wanted < left ? wanted : left;
            if (rows + n[s] > most) n[s] = 0;
            rows += n[s];
        }
        if (done) return;
        if (rows > 0) step(b, n);
    }
}

static const nmlp_batch_options limits = {.context = TOKENS + 10,
                                          .positions = SEQUENCES_MAX * (TOKENS + 10),
                                          .max_sequences = SEQUENCES_MAX,
                                          .max_rows = 300};

static const double allowed = 0x1p-5; /* of the largest logit, as in test_cuda_engine.c */

static void check_model(const char *dir, int n, int64_t most, double tolerance) {
    struct both b;
    open_both(&b, dir, n, &limits, tolerance);
    run_schedule(&b, most, 3);
    close_both(&b);
}

static void fixtures_match_the_cpu(void **state) {
    static const char *const names[] = {"fixtures/llama-gqa-tied", "fixtures/llama-mha-untied", "fixtures/qwen2-bias",
                                        "fixtures/qwen3-headdim"};
    (void)state;
    if (!nmlp_test_gpu()) skip();
    int n_there = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char dir[1024];
        if (!nmlp_test_shared_path(dir, sizeof dir, names[i])) continue;
        check_model(dir, 3, 8, allowed);
        check_model(dir, 9, 32, allowed);
        check_model(dir, 12, 300, allowed);
        n_there++;
    }
    if (n_there == 0) skip();
}

static void tiny_matches_the_cpu(void **state) {
    (void)state;
    if (!nmlp_test_gpu()) skip();
    check_model(NMLP_TEST_ROOT "/models/tiny", SEQUENCES_MAX, 300, allowed);
}

/* Greedy text of n sequences through choices on the device, `more` steps ahead. Every token must be the CPU's best one,
 * or one that the CPU holds as good within the tolerance. */
static void check_choices(const char *dir, int n, int64_t more) {
    enum { PROMPT = 20, NEW = 30 };
    static const nmlp_sampling greedy = {.repetition_penalty = 1, .top_p = 1};
    struct both b;
    nmlp_err err;
    int32_t text[SEQUENCES_MAX][PROMPT + NEW];
    nmlp_step_item items[SEQUENCES_MAX];
    nmlp_choice_item choices[SEQUENCES_MAX];
    open_both(&b, dir, n, &limits, allowed);
    for (int s = 0; s < n; s++) {
        memcpy(text[s], b.ids[s], PROMPT * sizeof text[s][0]);
        int64_t prompt = PROMPT - s % 3; /* texts of several lengths */
        items[s] = (nmlp_step_item){
            .sequence = b.sequence[s], .ids = text[s] + (PROMPT - prompt), .n = prompt, .choose = &greedy};
        choices[s].sequence = b.sequence[s];
        b.length[s] = prompt;
    }
    for (int64_t done = 0; done < n; done += 10) /* at most 300 rows a step */
        nmlp_assert_ok(nmlp_batch_step(b.batch, items + done, n - done < 10 ? n - done : 10, &err), &err);
    for (int i = 0; i < NEW; i++) {
        nmlp_assert_ok(nmlp_batch_choose(b.batch, choices, n, i + 1 < NEW ? more : 0, &err), &err);
        for (int s = 0; s < n; s++) {
            text[s][PROMPT + i] = choices[s].id;
            items[s] =
                (nmlp_step_item){.sequence = b.sequence[s], .ids = &text[s][PROMPT + i], .n = 1, .choose = &greedy};
        }
        if (i + 1 < NEW) nmlp_assert_ok(nmlp_batch_step(b.batch, items, n, &err), &err);
    }
    for (int s = 0; s < n; s++) {
        int64_t first = PROMPT - b.length[s];
        int64_t length = b.length[s] + NEW - 1;
        float *want = loaded_engine_logits(&b.cpu, text[s] + first, length, 0);
        for (int64_t i = 0; i < NEW; i++) {
            const float *row = want + (b.length[s] - 1 + i) * b.vocab;
            int64_t best = nmlp_argmax(row, b.vocab);
            double gap = (double)row[best] - (double)row[text[s][PROMPT + i]];
            if (gap > 2 * b.tolerance * fabs((double)row[best]))
                fail_msg("sequence %d of %d, choice %lld: %d instead of %lld", s, n, (long long)i, text[s][PROMPT + i],
                         (long long)best);
        }
        nmlp_mem_free(want);
    }
    close_both(&b);
}

static void choices_are_the_best_tokens(void **state) {
    (void)state;
    if (!nmlp_test_gpu()) skip();
    for (int64_t more = 0; more <= 20; more += 10) {
        check_choices(NMLP_TEST_ROOT "/models/tiny", 1, more);
        check_choices(NMLP_TEST_ROOT "/models/tiny", 2, more);
        check_choices(NMLP_TEST_ROOT "/models/tiny", 9, more);
        check_choices(NMLP_TEST_ROOT "/models/tiny", SEQUENCES_MAX, more);
    }
}

/* Same seed, same text, run ahead or not and whatever is dropped in between. */
static void steps_ahead_change_nothing(void **state) {
    enum { NEW = 24 };
    static const nmlp_sampling warm = {.temperature = 1, .repetition_penalty = 1, .top_p = 1, .seed = 9};
    struct both b;
    nmlp_err err;
    int32_t text[2][2][NEW];
    (void)state;
    if (!nmlp_test_gpu()) skip();
    open_both(&b, NMLP_TEST_ROOT "/models/tiny", 2, &limits, allowed);
    for (int round = 0; round < 2; round++) {
        nmlp_choice_item choices[2];
        for (int s = 0; s < 2; s++) {
            nmlp_batch_truncate(b.batch, b.sequence[s], 0);
            choices[s].sequence = b.sequence[s];
        }
        for (int i = 0; i < NEW; i++) {
            nmlp_step_item items[2];
            for (int s = 0; s < 2; s++)
                items[s] = (nmlp_step_item){.sequence = b.sequence[s],
                                            .ids = i ? &text[round][s][i - 1] : b.ids[s],
                                            .n = i ? 1 : 10,
                                            .choose = &warm};
            if (i % 5 == 4) { /* one after the other: what was run ahead is not taken */
                nmlp_assert_ok(nmlp_batch_step(b.batch, &items[1], 1, &err), &err);
                nmlp_assert_ok(nmlp_batch_step(b.batch, &items[0], 1, &err), &err);
            } else {
                nmlp_assert_ok(nmlp_batch_step(b.batch, items, 2, &err), &err);
            }
            nmlp_assert_ok(nmlp_batch_choose(b.batch, choices, 2, round ? NEW - 1 - i : 0, &err), &err);
            for (int s = 0; s < 2; s++) text[round][s][i] = choices[s].id;
        }
    }
    assert_memory_equal(text[0], text[1], sizeof text[0]);
    close_both(&b);
}

/* A fork continues as its parent would; writing to one leaves the other alone. */
static void forks_share_and_part(void **state) {
    struct both b;
    nmlp_err err;
    (void)state;
    if (!nmlp_test_gpu()) skip();
    open_both(&b, NMLP_TEST_ROOT "/models/tiny", 2, &limits, allowed);
    const int64_t first[] = {70, 0};
    const int64_t both_go_on[] = {5, 5};
    step(&b, first);
    nmlp_batch_close(b.batch, b.sequence[1]);
    nmlp_assert_ok(nmlp_batch_fork(b.batch, b.sequence[0], 67, &b.sequence[1], &err), &err);
    memcpy(b.ids[1], b.ids[0], 67 * sizeof b.ids[0][0]); /* the same beginning, then its own text */
    nmlp_mem_free(b.want[1]);
    b.want[1] = loaded_engine_logits(&b.cpu, b.ids[1], TOKENS, 0);
    b.length[1] = 67;
    for (int i = 0; i < 3; i++) step(&b, both_go_on);
    close_both(&b);
}

/* A text whose beginning was there before, in a sequence that is closed, runs from where it parts; the pages it shares
 * were not computed again, and logits are those of the whole text. */
static void a_known_beginning_is_shared(void **state) {
    struct both b;
    nmlp_err err;
    (void)state;
    if (!nmlp_test_gpu()) skip();
    open_both(&b, NMLP_TEST_ROOT "/models/tiny", 3, &limits, allowed);
    const int64_t first[] = {TOKENS, 0, 0};
    const int64_t rest[] = {0, 10, 1};
    step(&b, first);
    nmlp_batch_close(b.batch, b.sequence[0]);
    for (int s = 1; s < 3; s++) { /* the second has 80 tokens of it, the third all */
        int64_t same = s == 1 ? 80 : TOKENS;
        memcpy(b.ids[s], b.ids[0], (size_t)same * sizeof b.ids[0][0]);
        nmlp_mem_free(b.want[s]);
        b.want[s] = loaded_engine_logits(&b.cpu, b.ids[s], TOKENS, 0);
        nmlp_batch_close(b.batch, b.sequence[s]);
        nmlp_assert_ok(nmlp_batch_open(b.batch, b.ids[s], TOKENS, &b.sequence[s], &err), &err);
        b.length[s] = nmlp_batch_length(b.batch, b.sequence[s]);
        assert_int_equal(b.length[s], same < TOKENS - 1 ? same : TOKENS - 1);
    }
    step(&b, rest);
    b.n = 3;
    close_both(&b);
}

/* The one sequence that cannot have pages is refused; the others go on. */
static void a_full_pool_refuses_one(void **state) {
    const nmlp_batch_options small = {.context = TOKENS, .positions = 2 * 64, .max_sequences = 3, .max_rows = 100};
    const int64_t prompts[] = {60, 30, 0};
    const int64_t others[] = {1, 1, 0};
    struct both b;
    nmlp_err err;
    (void)state;
    if (!nmlp_test_gpu()) skip();
    open_both(&b, NMLP_TEST_ROOT "/models/tiny", 3, &small, allowed);
    step(&b, prompts);
    nmlp_step_item items[3];
    for (int s = 0; s < 3; s++) /* five pages, of which these want six */
        items[s] =
            (nmlp_step_item){.sequence = b.sequence[s], .ids = b.ids[s] + b.length[s], .n = TOKENS - b.length[s]};
    nmlp_status st = NMLP_OK;
    for (int s = 2; s >= 0 && st == NMLP_OK; s--) st = nmlp_batch_reserve(b.batch, b.sequence[s], items[s].n, &err);
    assert_int_equal(st, NMLP_E_LIMIT);
    step(&b, others);
    close_both(&b);
}

/* Largest difference over largest logit of two rows. */
static double distance(const float *a, const float *b, int64_t n) {
    double largest = 0;
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs((double)b[i]));
        worst = fmax(worst, isfinite(a[i]) ? fabs((double)a[i] - (double)b[i]) : INFINITY);
    }
    return worst / largest;
}

/* One of: the sequence is closed and another opened, cut, or replaced by a fork of sequence `other`. */
static void disturb(struct both *b, int s, int other, nmlp_rng *rng) {
    nmlp_err err;
    int64_t length = (int64_t)nmlp_rng_below(rng, (uint64_t)b->length[s] + 1);
    switch (nmlp_rng_below(rng, 16)) {
    case 0:
        nmlp_batch_close(b->batch, b->sequence[s]);
        nmlp_assert_ok(nmlp_batch_open(b->batch, NULL, 0, &b->sequence[s], &err), &err);
        b->length[s] = 0;
        break;
    case 1:
        nmlp_batch_truncate(b->batch, b->sequence[s], length);
        b->length[s] = length;
        break;
    case 2:
        if (other == s || b->length[other] == 0) break;
        length = 1 + (int64_t)nmlp_rng_below(rng, (uint64_t)b->length[other]);
        nmlp_batch_close(b->batch, b->sequence[s]);
        nmlp_assert_ok(nmlp_batch_fork(b->batch, b->sequence[other], length, &b->sequence[s], &err), &err);
        memcpy(b->ids[s], b->ids[other], (size_t)length * sizeof b->ids[s][0]);
        b->length[s] = length;
        break;
    default: break;
    }
}

/* Some hundred steps of random rows of random sequences, with closes, cuts and forks between them: logits are those of
 * the text run alone and in one piece. Alone it has another number of rows, so other kernels, which round elsewhere. */
static void random_schedules_equal_sequences_alone(void **state) {
    enum { N = 7, STEPS = 300 };
    const nmlp_batch_options one = {.context = TOKENS + 10, .max_sequences = 2};
    struct both b;
    nmlp_rng rng;
    nmlp_err err;
    nmlp_batch *alone = NULL;
    int32_t sequence = -1;
    (void)state;
    if (!nmlp_test_gpu()) skip();
    open_both(&b, NMLP_TEST_ROOT "/models/tiny", N, &limits, 0x1p-4);
    nmlp_assert_ok(nmlp_batch_create(&alone, b.gpu, &one, &err), &err);
    nmlp_assert_ok(nmlp_batch_open(alone, NULL, 0, &sequence, &err), &err);
    float *want = nmlp_mem_new((size_t)b.vocab, sizeof *want, NULL);
    nmlp_rng_seed(&rng, 11);
    for (int step = 0; step < STEPS; step++) {
        nmlp_step_item items[N] = {{0}};
        int of[N];
        int64_t n_items = 0;
        for (int s = 0; s < N; s++) {
            disturb(&b, s, (int)nmlp_rng_below(&rng, N), &rng);
            int64_t n = nmlp_rng_below(&rng, 2) ? 1 : 1 + (int64_t)nmlp_rng_below(&rng, 12);
            if (b.length[s] + n > TOKENS || nmlp_rng_below(&rng, 3) == 0) continue;
            items[n_items] = (nmlp_step_item){.sequence = b.sequence[s],
                                              .ids = b.ids[s] + b.length[s],
                                              .n = n,
                                              .n_logits = 1,
                                              .logits = b.got + n_items * b.vocab};
            of[n_items++] = s;
        }
        if (n_items == 0) continue;
        nmlp_assert_ok(nmlp_batch_step(b.batch, items, n_items, &err), &err);
        for (int64_t i = 0; i < n_items; i++) {
            int s = of[i];
            b.length[s] += items[i].n;
            nmlp_batch_truncate(alone, sequence, 0);
            nmlp_assert_ok(nmlp_batch_append(alone, sequence, b.ids[s], b.length[s], want, NULL, &err), &err);
            double differs = distance(items[i].logits, want, b.vocab);
            if (!(differs <= b.tolerance))
                fail_msg("step %d: logits of sequence %d, %lld tokens, differ by %g", step, s, (long long)b.length[s],
                         differs);
        }
    }
    nmlp_mem_free(want);
    nmlp_batch_destroy(alone);
    close_both(&b);
}

/* Prompts, then one row of each sequence at a time: steps of no prompts. */
static void check_decode_steps(const char *dir, int n, double tolerance) {
    enum { PROMPT = 50 };
    struct both b;
    int64_t rows[SEQUENCES_MAX] = {0};
    open_both(&b, dir, n, &limits, tolerance);
    for (int s = 0; s < n; s++) {
        rows[s] = PROMPT + s;
        step(&b, rows);
        rows[s] = 0;
    }
    for (int i = 0; PROMPT + n + i < TOKENS; i++) {
        for (int s = 0; s < n; s++) rows[s] = (i + s) % 5 != 0; /* some pause */
        step(&b, rows);
    }
    close_both(&b);
}

static void decode_steps_match_the_cpu(void **state) {
    (void)state;
    if (!nmlp_test_gpu()) skip();
    check_decode_steps(NMLP_TEST_ROOT "/models/tiny", 1, allowed);
    check_decode_steps(NMLP_TEST_ROOT "/models/tiny", 8, allowed);
}

/* 8, 16 and 32 rows, which have programs of their own. */
static void check_few_rows(const char *dir, double tolerance) {
    check_model(dir, 6, 8, tolerance);
    check_decode_steps(dir, 8, tolerance);
    check_decode_steps(dir, 15, tolerance);
    check_decode_steps(dir, 30, tolerance);
}

/* What the layers add to tiny embeddings as they are may cancel, and the last norm then magnifies what was rounded: at
 * 1 of 100 positions by bf16 alone beyond what is allowed. Embeddings that are larger than that leave half of it. */
static void enlarge_embedding(tiny_checkpoint *c) {
    tiny_tensor *t = tiny_find(c, "model.embed_tokens.weight");
    for (int64_t i = 0; i < t->shape[0] * t->shape[1]; i++) t->data[i] *= 10;
}

/* Odd sizes, factors of odd ranks, mixtures; then a wider model whose layers are all factorised, where bf16 alone gives
 * 0.0055 of the largest logit. Weights are bf16 on both sides. */
static void factorised_models_match_the_cpu(void **state) {
    (void)state;
    if (!nmlp_test_gpu()) skip();
    tiny_checkpoint c;
    nmlp_config config;
    nmlp_err err;
    int64_t params, bytes;
    char dir[300], root[256];
    nmlp_test_mkdtemp(root, sizeof root);
    tiny_init(&c, 3);
    tiny_factorise(&c, 0, "gate_proj", 7, NULL);
    tiny_factorise(&c, 0, "up_proj", 11, NULL);
    tiny_factorise(&c, 0, "down_proj", 5, NULL);
    tiny_factorise(&c, 1, "up_proj", 9, NULL);
    tiny_mark_compressed(&c);
    enlarge_embedding(&c);
    tiny_write(&c, root, NMLP_DTYPE_BF16);
    check_few_rows(root, allowed);
    tiny_fini(&c);
    snprintf(dir, sizeof dir, "%s/m", root);
    nmlp_assert_ok(nmlp_preset_find(&config, "llama-3.2-1b", &err), &err);
    config.hidden = 576;
    config.intermediate = 1600;
    config.n_heads = 9;
    config.n_kv_heads = 3;
    config.vocab = 3008;
    const nmlp_synth_options options = {.tile = 32, .ratio = 0.3, .n_layers = 3, .dtype = NMLP_DTYPE_BF16};
    nmlp_assert_ok(nmlp_synth_write(dir, &config, &options, &params, &bytes, &err), &err);
    check_few_rows(dir, 0x1p-7);
    nmlp_test_rmdir(root);
}

/* Prompts in turns, so that no sequence has neighbouring pages; then one row at a time, of one sequence after the
 * other: the kernel of a row alone, in a batch of many. */
static void rows_alone_match_the_cpu(void **state) {
    enum { N = 3, PIECE = 20, PROMPT = 80 };
    struct both b;
    (void)state;
    if (!nmlp_test_gpu()) skip();
    open_both(&b, NMLP_TEST_ROOT "/models/tiny", N, &limits, allowed);
    for (int i = 0; i < PROMPT / PIECE * N; i++) {
        int64_t rows[SEQUENCES_MAX] = {0};
        rows[i % N] = PIECE;
        step(&b, rows);
    }
    for (int i = 0; i < (TOKENS - PROMPT) * N; i++) {
        int64_t rows[SEQUENCES_MAX] = {0};
        rows[i % N] = 1;
        step(&b, rows);
    }
    close_both(&b);
}

/* Keys in several chunks, which blocks merge. */
static void long_texts_match_the_cpu(void **state) {
    enum { LONG = 480, PROMPT = 250, N = 3 };
    const nmlp_batch_options options = {.context = LONG, .positions = N * LONG, .max_sequences = N, .max_rows = 300};
    loaded_engine cpu;
    nmlp_engine *gpu;
    nmlp_batch *batch;
    int32_t sequence[N], ids[LONG];
    nmlp_rng rng;
    nmlp_err err;
    (void)state;
    if (!nmlp_test_gpu()) skip();
    loaded_engine_open(&cpu, NMLP_TEST_ROOT "/models/tiny", NULL, 0);
    nmlp_engine_options engine = {.backend = nmlp_backend_cuda(), .pool = cpu.pool};
    nmlp_assert_ok(nmlp_engine_create(&gpu, &cpu.model, &engine, &err), &err);
    nmlp_assert_ok(nmlp_batch_create(&batch, gpu, &options, &err), &err);
    int64_t vocab = cpu.model.config.vocab;
    nmlp_rng_seed(&rng, 17);
    for (int i = 0; i < LONG; i++) ids[i] = (int32_t)nmlp_rng_below(&rng, (uint64_t)vocab);
    float *want = loaded_engine_logits(&cpu, ids, LONG, 0);
    float *got = nmlp_mem_new((size_t)(N * vocab), sizeof *got, NULL);
    for (int s = 0; s < N; s++) {
        nmlp_assert_ok(nmlp_batch_open(batch, NULL, 0, &sequence[s], &err), &err);
        nmlp_assert_ok(nmlp_batch_append(batch, sequence[s], ids, PROMPT + 100 * s, got, NULL, &err), &err);
    }
    for (int i = 0; PROMPT + 100 * (N - 1) + i < LONG; i++) {
        nmlp_step_item items[N];
        for (int s = 0; s < N; s++)
            items[s] = (nmlp_step_item){.sequence = sequence[s],
                                        .ids = ids + PROMPT + 100 * s + i,
                                        .n = 1,
                                        .n_logits = 1,
                                        .logits = got + s * vocab};
        nmlp_assert_ok(nmlp_batch_step(batch, items, N, &err), &err);
        for (int s = 0; s < N; s++) {
            int64_t position = PROMPT + 100 * s + i;
            double differs = distance(got + s * vocab, want + position * vocab, vocab);
            if (!(differs <= allowed)) fail_msg("logits at position %lld differ by %g", (long long)position, differs);
        }
    }
    nmlp_mem_free(want);
    nmlp_mem_free(got);
    nmlp_batch_destroy(batch);
    nmlp_engine_destroy(gpu);
    loaded_engine_close(&cpu);
}

/* A few rows of a prompt behind many keys, beside a sequence that decodes: every row's logits. */
static void few_rows_behind_many_keys_match_the_cpu(void **state) {
    enum { LONG = 500, BEFORE = 390, MOST = 30 };
    const nmlp_batch_options options = {.context = LONG, .positions = 2 * LONG, .max_sequences = 3, .max_rows = 400};
    static const int64_t pieces[] = {2, 7, 30, 1, 25, 3, 29};
    loaded_engine cpu;
    nmlp_engine *gpu;
    nmlp_batch *batch;
    int32_t prompt, other, ids[LONG];
    nmlp_rng rng;
    nmlp_err err;
    (void)state;
    if (!nmlp_test_gpu()) skip();
    loaded_engine_open(&cpu, NMLP_TEST_ROOT "/models/tiny", NULL, 0);
    nmlp_engine_options engine = {.backend = nmlp_backend_cuda(), .pool = cpu.pool};
    nmlp_assert_ok(nmlp_engine_create(&gpu, &cpu.model, &engine, &err), &err);
    nmlp_assert_ok(nmlp_batch_create(&batch, gpu, &options, &err), &err);
    int64_t vocab = cpu.model.config.vocab, at = BEFORE;
    nmlp_rng_seed(&rng, 23);
    for (int i = 0; i < LONG; i++) ids[i] = (int32_t)nmlp_rng_below(&rng, (uint64_t)vocab);
    float *want = loaded_engine_logits(&cpu, ids, LONG, 0);
    float *got = nmlp_mem_new((size_t)((MOST + 1) * vocab), sizeof *got, NULL);
    nmlp_assert_ok(nmlp_batch_open(batch, NULL, 0, &prompt, &err), &err);
    nmlp_assert_ok(nmlp_batch_open(batch, NULL, 0, &other, &err), &err);
    nmlp_assert_ok(nmlp_batch_append(batch, prompt, ids, BEFORE, got, NULL, &err), &err);
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        int64_t n = pieces[i];
        nmlp_step_item items[2] = {
            {.sequence = prompt, .ids = ids + at, .n = n, .n_logits = n, .logits = got},
            {.sequence = other, .ids = ids + i, .n = 1, .n_logits = 1, .logits = got + n * vocab}};
        nmlp_assert_ok(nmlp_batch_step(batch, items, 2, &err), &err);
        for (int64_t row = 0; row <= n; row++) {
            int64_t position = row < n ? at + row : (int64_t)i;
            double differs = distance(got + row * vocab, want + position * vocab, vocab);
            if (!(differs <= allowed)) fail_msg("logits at position %lld differ by %g", (long long)position, differs);
        }
        at += n;
    }
    nmlp_mem_free(want);
    nmlp_mem_free(got);
    nmlp_batch_destroy(batch);
    nmlp_engine_destroy(gpu);
    loaded_engine_close(&cpu);
}

/* Two to 8 rows run as 8: a sequence beside one other or beside five has the same bits. */
static void company_in_a_bucket_changes_no_bit(void **state) {
    enum { N = 6, PROMPT = 40 };
    struct both b;
    nmlp_err err;
    (void)state;
    if (!nmlp_test_gpu()) skip();
    open_both(&b, NMLP_TEST_ROOT "/models/tiny", N, &limits, allowed);
    float *first = nmlp_mem_new((size_t)b.vocab, sizeof *first, NULL);
    nmlp_step_item items[N];
    for (int s = 0; s < N; s++) {
        items[s] = (nmlp_step_item){.sequence = b.sequence[s], .ids = b.ids[s], .n = PROMPT};
        nmlp_assert_ok(nmlp_batch_step(b.batch, &items[s], 1, &err), &err);
        items[s] = (nmlp_step_item){
            .sequence = b.sequence[s], .ids = b.ids[s] + PROMPT, .n = 1, .n_logits = 1, .logits = b.got + s * b.vocab};
    }
    nmlp_assert_ok(nmlp_batch_step(b.batch, &items[2], 2, &err), &err);
    memcpy(first, items[2].logits, (size_t)b.vocab * sizeof *first);
    nmlp_batch_truncate(b.batch, b.sequence[2], PROMPT);
    nmlp_batch_truncate(b.batch, b.sequence[3], PROMPT);
    nmlp_assert_ok(nmlp_batch_step(b.batch, items, N, &err), &err);
    assert_memory_equal(items[2].logits, first, (size_t)b.vocab * sizeof *first);
    nmlp_mem_free(first);
    close_both(&b);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixtures_match_the_cpu),
        cmocka_unit_test(tiny_matches_the_cpu),
        cmocka_unit_test(choices_are_the_best_tokens),
        cmocka_unit_test(steps_ahead_change_nothing),
        cmocka_unit_test(forks_share_and_part),
        cmocka_unit_test(a_known_beginning_is_shared),
        cmocka_unit_test(a_full_pool_refuses_one),
        cmocka_unit_test(random_schedules_equal_sequences_alone),
        cmocka_unit_test(company_in_a_bucket_changes_no_bit),
        cmocka_unit_test(decode_steps_match_the_cpu),
        cmocka_unit_test(factorised_models_match_the_cpu),
        cmocka_unit_test(rows_alone_match_the_cpu),
        cmocka_unit_test(long_texts_match_the_cpu),
        cmocka_unit_test(few_rows_behind_many_keys_match_the_cpu),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
