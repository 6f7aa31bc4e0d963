#include "eval/choice.h"

#include <inttypes.h>
#include <math.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/gpu.h"
#include "eval/choice_encode.h"
#include "eval/logprob.h"
#include "eval/score_gpu.h"

/* Tokens of one packed call: many chunks, so that the last one being short costs little. */
enum { BATCH_TOKENS = 8192 };

/* Questions that run together. */
struct batch {
    nmlp_segment *segments;
    size_t n_segments, segments_capacity;
    nmlp_target *targets;
    size_t n_targets, targets_capacity;
    int64_t *slots; /* which log-likelihood each target adds to */
    size_t slots_capacity;
    int64_t n_rows;
};

struct run {
    const nmlp_encoded *encoded;
    const nmlp_choice_options *options;
    nmlp_choice_result *result;
    nmlp_scorer *scorer;
    struct batch batch;
    int64_t n_total; /* tokens to run in all */
    bool stop;
};

static nmlp_status add_segment(struct batch *b, nmlp_segment segment, nmlp_err *err) {
    void *segments = b->segments;
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&segments, &b->segments_capacity, b->n_segments + 1, sizeof *b->segments, err));
    b->segments = segments;
    b->segments[b->n_segments++] = segment;
    b->n_rows += segment.n;
    return NMLP_OK;
}

static nmlp_status add_target(struct batch *b, int64_t row, int32_t token, int64_t slot, nmlp_err *err) {
    void *targets = b->targets, *slots = b->slots;
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&targets, &b->targets_capacity, b->n_targets + 1, sizeof *b->targets, err));
    b->targets = targets;
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&slots, &b->slots_capacity, b->n_targets + 1, sizeof *b->slots, err));
    b->slots = slots;
    b->targets[b->n_targets] = (nmlp_target){.row = row, .token = token};
    b->slots[b->n_targets++] = slot;
    return NMLP_OK;
}

/* The shared beginning first, with the targets its rows predict, then what is each choice's own. */
static nmlp_status add_question(struct batch *b, const nmlp_encoded *e, int64_t i, nmlp_err *err) {
    int64_t shared = nmlp_encoded_shared(e, i);
    int64_t base = b->n_rows;
    for (int64_t p = 0; p < shared; p++) {
        for (int64_t c = e->first[i]; c < e->first[i + 1]; c++) {
            const nmlp_sequence *s = &e->sequences[c];
            if (p + 1 >= s->score && p + 1 < s->n)
                NMLP_RETURN_IF_FAILED(add_target(b, base + p, s->ids[p + 1], c, err));
        }
    }
    NMLP_RETURN_IF_FAILED(add_segment(b, (nmlp_segment){.ids = e->sequences[e->first[i]].ids, .n = shared}, err));
    for (int64_t c = e->first[i]; c < e->first[i + 1]; c++) {
        const nmlp_sequence *s = &e->sequences[c];
        int64_t own = s->n - 1 - shared;
        base = b->n_rows;
        for (int64_t p = s->score - 1 > shared ? s->score - 1 : shared; p < s->n - 1; p++)
            NMLP_RETURN_IF_FAILED(add_target(b, base + p - shared, s->ids[p + 1], c, err));
        NMLP_RETURN_IF_FAILED(add_segment(b, (nmlp_segment){.ids = s->ids + shared, .n = own, .first = shared}, err));
    }
    return NMLP_OK;
}

static void on_rows(void *ctx, nmlp_session *session, const float *rows, int64_t first, int64_t s) {
    struct run *r = ctx;
    const nmlp_choice_options *o = r->options;
    nmlp_scorer_rows(r->scorer, session, rows, first, s);
    r->result->n_run += s;
    if (!nmlp_progress_update(o->progress, o->stage ? o->stage : "choices", (double)r->result->n_run,
                              (double)r->n_total, "tokens"))
        r->stop = true;
}

static nmlp_status run_batch(struct run *r, nmlp_session *session, nmlp_err *err) {
    struct batch *b = &r->batch;
    nmlp_session_truncate(session, 0);
    nmlp_scorer_begin(r->scorer, b->targets, (int64_t)b->n_targets);
    NMLP_RETURN_IF_FAILED(nmlp_session_run_packed(session, b->segments, (int64_t)b->n_segments, on_rows, r, err));
    NMLP_RETURN_IF_FAILED(nmlp_scorer_end(r->scorer, err));
    for (size_t t = 0; t < b->n_targets; t++) r->result->loglik[b->slots[t]] += b->targets[t].logprob;
    b->n_segments = 0;
    b->n_targets = 0;
    b->n_rows = 0;
    if (r->stop) return nmlp_fail(err, NMLP_E_INTERRUPTED, "stopped after %" PRId64 " tokens", r->result->n_run);
    return NMLP_OK;
}

static void count_tokens(struct run *r) {
    const nmlp_encoded *e = r->encoded;
    for (int64_t i = 0; i < e->n; i++) {
        int64_t shared = nmlp_encoded_shared(e, i);
        r->n_total += shared;
        for (int64_t c = e->first[i]; c < e->first[i + 1]; c++) {
            r->n_total += e->sequences[c].n - 1 - shared;
            r->result->n_whole += e->sequences[c].n - 1;
        }
    }
}

static nmlp_status run_all(struct run *r, const nmlp_engine *engine, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_session *session = NULL;
    const nmlp_encoded *e = r->encoded;
    int64_t context = e->longest > NMLP_CHUNK_DEFAULT ? e->longest : NMLP_CHUNK_DEFAULT; /* room for a full chunk */
    int64_t most = nmlp_engine_model(engine)->config.max_positions;
    count_tokens(r);
    NMLP_TRY(nmlp_session_create(&session, engine, context < most ? context : most, 0, false, err));
    NMLP_TRY(nmlp_scorer_create(&r->scorer, session, err));
    for (int64_t i = 0; i < e->n; i++) {
        NMLP_TRY(add_question(&r->batch, e, i, err));
        if (r->batch.n_rows >= BATCH_TOKENS || i + 1 == e->n) NMLP_TRY(run_batch(r, session, err));
    }
out:
    nmlp_scorer_destroy(r->scorer);
    nmlp_session_destroy(session);
    nmlp_mem_free(r->batch.segments);
    nmlp_mem_free(r->batch.targets);
    nmlp_mem_free(r->batch.slots);
    return st;
}

/* Every choice whole: on a GPU texts side by side cost less than telling apart what they share. */
static nmlp_status run_on_gpu(struct run *r, const nmlp_engine *engine, nmlp_err *err) {
    const nmlp_encoded *e = r->encoded;
    const nmlp_choice_options *o = r->options;
    nmlp_gpu_scoring scoring = {.stage = o->stage ? o->stage : "choices", .progress = o->progress};
    count_tokens(r);
    NMLP_RETURN_IF_FAILED(nmlp_score_on_gpu(r->result->loglik, engine, e->sequences, e->first[e->n], &scoring, err));
    r->result->n_run = scoring.n_run;
    return NMLP_OK;
}

static double stderr_of(double p, int64_t n) { return n > 1 ? sqrt(p * (1 - p) / (double)(n - 1)) : NAN; }

void nmlp_choice_judge(nmlp_choice_result *r, const nmlp_questions *questions) {
    int64_t n_right = 0, n_right_norm = 0;
    for (int64_t i = 0; i < r->n; i++) {
        const nmlp_question *q = &questions->items[i];
        const double *loglik = r->loglik + r->first[i];
        int64_t best = 0, best_norm = 0;
        for (int64_t c = 1; c < q->n_choices; c++) {
            if (loglik[c] > loglik[best]) best = c;
            if (loglik[c] / (double)q->choices[c].norm_bytes >
                loglik[best_norm] / (double)q->choices[best_norm].norm_bytes)
                best_norm = c;
        }
        r->pred[i] = best;
        r->pred_norm[i] = best_norm;
        n_right += best == q->gold;
        n_right_norm += best_norm == q->gold;
    }
    r->acc = (double)n_right / (double)r->n;
    r->acc_norm = (double)n_right_norm / (double)r->n;
    r->acc_stderr = stderr_of(r->acc, r->n);
    r->acc_norm_stderr = stderr_of(r->acc_norm, r->n);
}

static nmlp_status new_result(nmlp_choice_result *r, const nmlp_encoded *e, nmlp_err *err) {
    size_t n = (size_t)e->n;
    r->n = e->n;
    r->n_truncated = e->n_truncated;
    r->pred = nmlp_mem_new(n, sizeof *r->pred, err);
    r->pred_norm = nmlp_mem_new(n, sizeof *r->pred_norm, err);
    r->first = nmlp_mem_new(n + 1, sizeof *r->first, err);
    r->loglik = nmlp_mem_new((size_t)e->first[n], sizeof *r->loglik, err);
    if (!r->pred || !r->pred_norm || !r->first || !r->loglik) return NMLP_E_NOMEM;
    for (size_t i = 0; i <= n; i++) r->first[i] = e->first[i];
    return NMLP_OK;
}

nmlp_status nmlp_choice_eval(nmlp_choice_result *result, const nmlp_engine *engine, const nmlp_tokenizer *tokenizer,
                             const nmlp_questions *questions, const nmlp_choice_options *options, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_encoded encoded;
    double start = nmlp_clock_seconds();
    *result = (nmlp_choice_result){0};
    NMLP_RETURN_IF_FAILED(nmlp_encoded_create(&encoded, questions, tokenizer, options->bos,
                                              nmlp_engine_model(engine)->config.max_positions, nmlp_engine_pool(engine),
                                              err));
    struct run run = {.encoded = &encoded, .options = options, .result = result};
    NMLP_TRY(new_result(result, &encoded, err));
    NMLP_TRY((nmlp_engine_gpu(engine) ? run_on_gpu : run_all)(&run, engine, err));
    nmlp_choice_judge(result, questions);
    result->seconds = nmlp_clock_seconds() - start;
out:
    nmlp_encoded_destroy(&encoded);
    if (st != NMLP_OK) nmlp_choice_result_free(result);
    return st;
}

void nmlp_choice_result_free(nmlp_choice_result *r) {
    nmlp_mem_free(r->pred);
    nmlp_mem_free(r->pred_norm);
    nmlp_mem_free(r->first);
    nmlp_mem_free(r->loglik);
    *r = (nmlp_choice_result){0};
}
