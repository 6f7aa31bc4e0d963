/* One growing sequence on the device: caches and the decode program. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "cuda/decode/decode_step.h"
#include "cuda/engine_internal.h"

/* Prompts of up to this many tokens run as decode steps, one token each: they use no code that is still to be loaded.
 */
enum { FORCED_STEPS_MAX = 8, WARM_UP_ROWS = 128 };

/* ---- life of a session ---- */

/* Called twice: to measure, and for real. */
static nmlp_status lay_out(nmlp_cuda_session *s, const float *rope, nmlp_err *err) {
    const nmlp_config *c = &s->engine->model->config;
    nmlp_cuda_arena *arena = &s->arena;
    size_t cache_bytes = (size_t)(c->n_kv_heads * s->context * c->head_dim) * 2;
    size_t rope_bytes = (size_t)(s->context * c->head_dim) * sizeof *rope;
    for (int64_t l = 0; l < c->n_layers; l++) {
        s->k[l] = nmlp_cuda_arena_take(arena, cache_bytes);
        s->v[l] = nmlp_cuda_arena_take(arena, cache_bytes);
    }
    s->rope = nmlp_cuda_arena_take(arena, rope_bytes);
    s->hidden = nmlp_cuda_arena_take(arena, (size_t)nmlp_cuda_pad(c->hidden) * sizeof(float));
    s->logits = nmlp_cuda_arena_take(arena, (size_t)nmlp_cuda_pad(c->vocab) * sizeof(float));
    s->state = nmlp_cuda_arena_take(arena, sizeof *s->state);
    int64_t rows = s->context < NMLP_CUDA_PREFILL_ROWS ? s->context : NMLP_CUDA_PREFILL_ROWS;
    NMLP_RETURN_IF_FAILED(nmlp_cuda_prefill_lay_out(&s->prefill, s->engine, arena, rows, err));
    const nmlp_cuda_decode_step_call call = {.engine = s->engine,
                                             .rope = s->rope,
                                             .k = s->k,
                                             .v = s->v,
                                             .page_stride = NMLP_CUDA_PAGE_POSITIONS * c->head_dim,
                                             .head_stride = s->context * c->head_dim,
                                             .hidden = s->hidden,
                                             .logits = s->logits,
                                             .state = s->state,
                                             .choices = (unsigned long long *)(void *)s->choices};
    NMLP_RETURN_IF_FAILED(nmlp_cuda_decode_step_plan(&s->step, &call, false, arena, err));
    NMLP_RETURN_IF_FAILED(nmlp_cuda_decode_step_plan(&s->head, &call, true, arena, err));
    if (!arena->committed) return NMLP_OK;
    return NMLP_CUDA_CHECK(cudaMemcpy(s->rope, rope, rope_bytes, cudaMemcpyHostToDevice), "uploading the rotation",
                           err);
}

static nmlp_status make_handles(nmlp_cuda_session *s, nmlp_err *err) {
    void *pinned = NULL;
    size_t bytes = NMLP_CUDA_DECODE_CHOICES * sizeof *s->choices;
    NMLP_RETURN_IF_FAILED(
        NMLP_CUDA_CHECK(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "making a stream", err));
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(cudaMallocHost(&pinned, bytes), "pinning host memory", err));
    memset(pinned, 0, bytes);
    s->choices = pinned;
    return NMLP_OK;
}

/* n tokens at positions length.. leave their last hidden state in s->hidden. */
static nmlp_status prefill(nmlp_cuda_session *s, const int32_t *ids, int32_t n, nmlp_err *err) {
    nmlp_cuda_prefill_pass pass = {.engine = s->engine,
                                   .prefill = &s->prefill,
                                   .rope = s->rope,
                                   .k = s->k,
                                   .v = s->v,
                                   .maps = s->maps,
                                   .context = s->context,
                                   .first = s->length,
                                   .stream = s->stream};
    int32_t pitch = nmlp_cuda_pad(s->engine->model->config.hidden);
    NMLP_RETURN_IF_FAILED(nmlp_cuda_prefill_run(&pass, ids, n, err));
    return NMLP_CUDA_CHECK(cudaMemcpyAsync(s->hidden, s->prefill.hidden + (int64_t)(n - 1) * pitch,
                                           (size_t)pitch * sizeof(float), cudaMemcpyDeviceToDevice, s->stream),
                           "keeping the last row", err);
}

/* Runs prefill once, with few rows and with as many as it takes: kernels and cuBLASLt's plans are loaded now and not
 * when the first prompt waits for them. What it leaves in the cache is overwritten. */
static nmlp_status warm_up(nmlp_cuda_session *s, nmlp_err *err) {
    int32_t few = s->prefill.rows < WARM_UP_ROWS ? s->prefill.rows : WARM_UP_ROWS;
    int32_t *ids = nmlp_mem_new((size_t)s->prefill.rows, sizeof *ids, err);
    if (!ids) return NMLP_E_NOMEM;
    nmlp_status st = prefill(s, ids, few, err);
    nmlp_cuda_blas_measure(s->prefill.blas, true);
    if (st == NMLP_OK && s->prefill.rows > few) st = prefill(s, ids, s->prefill.rows, err);
    nmlp_cuda_blas_measure(s->prefill.blas, false);
    if (st == NMLP_OK) st = NMLP_CUDA_CHECK(cudaStreamSynchronize(s->stream), "warming up", err);
    nmlp_mem_free(ids);
    return st;
}

nmlp_status nmlp_cuda_session_create(nmlp_cuda_session **out, const nmlp_cuda_engine *engine, int64_t context,
                                     const float *rope, nmlp_err *err) {
    const nmlp_config *c = &engine->model->config;
    nmlp_status st = NMLP_OK;
    *out = NULL;
    if (context < 1 || context > c->max_positions)
        return nmlp_fail(err, NMLP_E_LIMIT, "a context of %lld tokens was asked for; the model takes 1 to %lld",
                         (long long)context, (long long)c->max_positions);
    nmlp_cuda_session *s = nmlp_mem_new(1, sizeof *s, err);
    if (!s) return NMLP_E_NOMEM;
    nmlp_cuda_arena_init(&s->arena);
    s->engine = engine;
    s->context = context;
    s->k = nmlp_mem_new((size_t)c->n_layers, sizeof *s->k, err);
    s->v = nmlp_mem_new((size_t)c->n_layers, sizeof *s->v, err);
    if (!s->k || !s->v) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(make_handles(s, err));
    NMLP_TRY(lay_out(s, rope, err));
    NMLP_TRY(nmlp_cuda_arena_commit(&s->arena, "a session of that context", err));
    NMLP_TRY(lay_out(s, rope, err));
    NMLP_TRY(nmlp_cuda_cache_maps_make(&s->maps, engine, s->k, s->v, context, err));
    NMLP_TRY(NMLP_CUDA_CHECK(cudaDeviceSynchronize(), "preparing a session", err));
    NMLP_TRY(warm_up(s, err));
    *out = s;
out:
    if (st != NMLP_OK) nmlp_cuda_session_destroy(s);
    return st;
}

void nmlp_cuda_session_destroy(nmlp_cuda_session *s) {
    if (!s) return;
    if (s->stream) (void)cudaStreamSynchronize(s->stream);
#ifdef NMLP_CUDA_CLOCKS
    nmlp_err ignored;
    (void)nmlp_cuda_decode_print_clocks(&s->step, s->engine->device.n_blocks, &ignored);
#endif
    if (s->choices) (void)cudaFreeHost((void *)s->choices);
    if (s->stream) (void)cudaStreamDestroy(s->stream);
    nmlp_cuda_blas_destroy(s->prefill.blas);
    nmlp_cuda_arena_release(&s->arena);
    nmlp_mem_free(s->maps);
    nmlp_mem_free(s->k);
    nmlp_mem_free(s->v);
    nmlp_mem_free(s);
}

static int64_t steps_ahead(const nmlp_cuda_session *s) { return s->n_choices - s->current; }

int64_t nmlp_cuda_session_length(const nmlp_cuda_session *s) { return s->length - steps_ahead(s); }

static void forget_steps_ahead(nmlp_cuda_session *s) {
    s->length -= steps_ahead(s);
    s->current = s->n_choices;
}

void nmlp_cuda_session_truncate(nmlp_cuda_session *s, int64_t length) {
    if (length < 0 || length >= nmlp_cuda_session_length(s)) return;
    forget_steps_ahead(s);
    s->length = length;
    s->picked = false;
}

void nmlp_cuda_session_set_sampling(nmlp_cuda_session *s, double temperature, uint64_t seed) {
    s->settings.inverse_temperature = temperature > 0 ? (float)(1.0 / temperature) : 0.0f;
    s->settings.seed = (uint32_t)(seed ^ seed >> 32);
}

/* ---- running ---- */

/* Tells the device where the text stands. The bytes are read before the call returns. */
static nmlp_status put_state(nmlp_cuda_session *s, int32_t token, int64_t length, nmlp_err *err) {
    s->settings.token = token;
    s->settings.length = (int32_t)length;
    s->settings.n_choices = s->n_choices;
    return NMLP_CUDA_CHECK(
        cudaMemcpyAsync(s->state, &s->settings, sizeof s->settings, cudaMemcpyHostToDevice, s->stream),
        "setting the state", err);
}

/* A program whose steps end with a choice each. */
static nmlp_status launch(nmlp_cuda_session *s, const nmlp_cuda_decode_program *program, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(nmlp_cuda_decode_launch(program, s->engine->device.n_blocks, s->stream),
                                          "launching the streaming kernel", err));
    s->n_choices += (uint32_t)program->n_steps;
    return NMLP_OK;
}

static nmlp_status start_steps(nmlp_cuda_session *s, int64_t n, nmlp_err *err) {
    s->step.n_steps = (int32_t)n;
    NMLP_RETURN_IF_FAILED(launch(s, &s->step, err));
    s->length += n;
    return NMLP_OK;
}

static bool is_chosen(nmlp_cuda_session *s, uint32_t number) {
    uint64_t choice = atomic_load_explicit(&s->choices[number % NMLP_CUDA_DECODE_CHOICES], memory_order_acquire);
    s->chosen = (int32_t)(uint32_t)choice;
    return choice >> 32 == number;
}

/* Choice `number` is in s->chosen. The device writes it to the host's memory; the driver is queried now and then,
 * in case the device has failed. */
static nmlp_status await_choice(nmlp_cuda_session *s, uint32_t number, nmlp_err *err) {
    enum { LOOKS_PER_QUESTION = 1 << 16 };
    for (;;) {
        for (int i = 0; i < LOOKS_PER_QUESTION; i++)
            if (is_chosen(s, number)) return NMLP_OK;
        cudaError_t e = cudaStreamQuery(s->stream);
        if (e == cudaErrorNotReady) continue;
        NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(e, "running the model", err));
        if (is_chosen(s, number)) return NMLP_OK;
        return nmlp_fail(err, NMLP_E_IO, "CUDA: the device ended a step without choosing a token");
    }
}

static nmlp_status check_append(const nmlp_cuda_session *s, const int32_t *ids, int64_t n, nmlp_err *err) {
    int64_t vocab = s->engine->model->config.vocab;
    int64_t length = nmlp_cuda_session_length(s);
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab)
            return nmlp_fail(err, NMLP_E_ARG, "token id %d at position %lld is outside the vocabulary of %lld", ids[i],
                             (long long)i, (long long)vocab);
    }
    if (n <= s->context - length) return NMLP_OK;
    nmlp_fail(err, NMLP_E_LIMIT, "%lld tokens do not fit: the context holds %lld, %lld are used", (long long)n,
              (long long)s->context, (long long)length);
    nmlp_fail_hint(err, "shorten the text or raise `context` (this model takes up to %lld)",
                   (long long)s->engine->model->config.max_positions);
    return NMLP_E_LIMIT;
}

static nmlp_status run_tokens(nmlp_cuda_session *s, const int32_t *ids, int64_t n, nmlp_err *err) {
    if (n <= FORCED_STEPS_MAX) {
        for (int64_t i = 0; i < n; i++) {
            NMLP_RETURN_IF_FAILED(put_state(s, ids[i], s->length, err));
            NMLP_RETURN_IF_FAILED(start_steps(s, 1, err));
        }
        return NMLP_OK;
    }
    for (int64_t done = 0; done < n; done += s->prefill.rows) {
        int32_t here = (int32_t)(n - done < s->prefill.rows ? n - done : s->prefill.rows);
        NMLP_RETURN_IF_FAILED(prefill(s, ids + done, here, err));
        s->length += here;
    }
    NMLP_RETURN_IF_FAILED(put_state(s, ids[n - 1], s->length - 1, err)); /* the head's pick adds one */
    return launch(s, &s->head, err);
}

/* Runs tokens that are no steps ahead. */
static nmlp_status append_anew(nmlp_cuda_session *s, const int32_t *ids, int64_t n, nmlp_err *err) {
    int64_t before = s->length;
    nmlp_status st = run_tokens(s, ids, n, err);
    s->picked = st == NMLP_OK;
    s->current = s->n_choices;
    s->last = ids[n - 1];
    if (st != NMLP_OK) s->length = before;
    return st;
}

nmlp_status nmlp_cuda_session_append(nmlp_cuda_session *s, const int32_t *ids, int64_t n, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(check_append(s, ids, n, err));
    if (n < 1) return NMLP_OK;
    if (steps_ahead(s) > 0 && n == 1) { /* started on the device's own choice: is it the one that was meant? */
        NMLP_RETURN_IF_FAILED(await_choice(s, s->current, err));
        if (ids[0] == s->chosen) {
            s->current++;
            s->last = ids[0];
            return NMLP_OK;
        }
    }
    forget_steps_ahead(s);
    return append_anew(s, ids, n, err);
}

nmlp_status nmlp_cuda_session_last_logits(nmlp_cuda_session *s, float *logits, nmlp_err *err) {
    size_t bytes = (size_t)s->engine->model->config.vocab * sizeof *logits;
    if (!s->picked) return nmlp_fail(err, NMLP_E_ARG, "there are no logits before a token is appended");
    if (steps_ahead(s) > 0) { /* theirs are there: once more the last token */
        forget_steps_ahead(s);
        s->length--;
        NMLP_RETURN_IF_FAILED(append_anew(s, &s->last, 1, err));
    }
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(cudaMemcpyAsync(logits, s->logits, bytes, cudaMemcpyDeviceToHost, s->stream),
                                          "fetching logits", err));
    return NMLP_CUDA_CHECK(cudaStreamSynchronize(s->stream), "running the model", err);
}

/* Steps in one launch go on without the pause between launches, so several are started at a time. */
nmlp_status nmlp_cuda_session_next(nmlp_cuda_session *s, int64_t more, int32_t *id, nmlp_err *err) {
    *id = -1;
    if (!s->picked) return nmlp_fail(err, NMLP_E_ARG, "there is no choice before a token is appended");
    if (steps_ahead(s) == 0) {
        if (more > s->context - s->length) more = s->context - s->length;
        if (more > NMLP_CUDA_DECODE_STEPS_MAX) more = NMLP_CUDA_DECODE_STEPS_MAX;
        if (more > 0) NMLP_RETURN_IF_FAILED(start_steps(s, more, err));
    }
    NMLP_RETURN_IF_FAILED(await_choice(s, s->current, err));
    *id = s->chosen;
    return NMLP_OK;
}
