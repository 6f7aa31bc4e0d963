#include "engine/speculation.h"

#include <string.h>

#include "base/ints.h"
#include "base/mem.h"
#include "engine/engine.h"

enum { PROPOSALS_FIRST = 4 };

struct nmlp_speculation {
    nmlp_batch *draft;
    int32_t sequence;
    int64_t vocab;
    bool greedy;
    int32_t *text; /* [context] */
    int64_t n_text;
    int64_t n_wanted;   /* proposals of the next time */
    int64_t n_proposed; /* this time */
    int32_t rows[1 + NMLP_PROPOSALS_MAX];
    float *logits;       /* [1 + proposals, V] the target's */
    float *draft_logits; /* [V] */
    float *p;            /* [V] */
    float *q;            /* [proposals, V] the draft's distributions; NULL: greedy */
};

static int64_t vocab_of(const nmlp_batch *batch) { return nmlp_engine_model(nmlp_batch_engine(batch))->config.vocab; }

nmlp_status nmlp_speculation_check(const nmlp_batch *target, const nmlp_batch *draft, const nmlp_sampling *sampling,
                                   nmlp_err *err) {
    if (vocab_of(draft) != vocab_of(target))
        return nmlp_fail_field(err, NMLP_E_ARG, "draft", "has a vocabulary of %lld tokens; the model has %lld",
                               (long long)vocab_of(draft), (long long)vocab_of(target));
    if (sampling->repetition_penalty != 1)
        return nmlp_fail_field(err, NMLP_E_ARG, "repetition_penalty", "is %g; with a draft it must be 1",
                               sampling->repetition_penalty);
    if (!nmlp_sampling_is_plain(sampling))
        return nmlp_fail_field(err, NMLP_E_ARG, "draft", "does not go with penalties or biases of tokens");
    return NMLP_OK;
}

nmlp_status nmlp_speculation_create(nmlp_speculation **out, nmlp_batch *draft, const nmlp_sampling *sampling,
                                    const int32_t *prompt, int64_t n_prompt, int64_t context, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *out = NULL;
    nmlp_speculation *s = nmlp_mem_new(1, sizeof *s, err);
    if (!s) return NMLP_E_NOMEM;
    s->draft = draft;
    s->sequence = -1;
    s->vocab = vocab_of(draft);
    s->greedy = sampling->temperature == 0;
    s->n_wanted = PROPOSALS_FIRST;
    size_t row_bytes = (size_t)s->vocab * sizeof(float);
    s->text = nmlp_mem_new((size_t)context, sizeof *s->text, err);
    s->logits = nmlp_mem_new(1 + NMLP_PROPOSALS_MAX, row_bytes, err);
    s->draft_logits = nmlp_mem_new(1, row_bytes, err);
    if (!s->text || !s->logits || !s->draft_logits) NMLP_TRY(NMLP_E_NOMEM);
    if (!s->greedy) {
        s->p = nmlp_mem_new(1, row_bytes, err);
        s->q = nmlp_mem_new(NMLP_PROPOSALS_MAX, row_bytes, err);
        if (!s->p || !s->q) NMLP_TRY(NMLP_E_NOMEM);
    }
    memcpy(s->text, prompt, (size_t)n_prompt * sizeof *prompt);
    s->n_text = n_prompt;
    NMLP_TRY(nmlp_batch_open(draft, prompt, n_prompt, &s->sequence, err));
    *out = s;
out:
    if (st != NMLP_OK) nmlp_speculation_destroy(s);
    return st;
}

void nmlp_speculation_destroy(nmlp_speculation *s) {
    if (!s) return;
    nmlp_batch_close(s->draft, s->sequence);
    nmlp_mem_free(s->text);
    nmlp_mem_free(s->logits);
    nmlp_mem_free(s->draft_logits);
    nmlp_mem_free(s->p);
    nmlp_mem_free(s->q);
    nmlp_mem_free(s);
}

void nmlp_speculation_append(nmlp_speculation *s, int32_t id) { s->text[s->n_text++] = id; }
const int32_t *nmlp_speculation_rows(const nmlp_speculation *s) { return s->rows; }
float *nmlp_speculation_logits(nmlp_speculation *s) { return s->logits; }

static int32_t propose_one(nmlp_speculation *s, nmlp_sampler *sampler, nmlp_sampler_scratch *scratch, int64_t at) {
    if (s->greedy) return (int32_t)nmlp_argmax(s->draft_logits, s->vocab);
    float *q = s->q + at * s->vocab;
    nmlp_sampler_distribution(sampler, scratch, s->draft_logits, q);
    return nmlp_sampler_draw(sampler, q);
}

int64_t nmlp_speculation_propose(nmlp_speculation *s, nmlp_sampler *sampler, nmlp_sampler_scratch *scratch,
                                 int64_t most) {
    int64_t wanted = nmlp_min(most, s->n_wanted);
    int64_t has = nmlp_batch_length(s->draft, s->sequence);
    s->rows[0] = s->text[s->n_text - 1];
    s->n_proposed = 0;
    while (s->n_proposed < wanted) {
        /* What of the text the draft has not run, then its own last proposal. */
        bool first = s->n_proposed == 0;
        const int32_t *ids = first ? s->text + has : &s->rows[s->n_proposed];
        int64_t n = first ? s->n_text - has : 1;
        if (nmlp_batch_append(s->draft, s->sequence, ids, n, s->draft_logits, NULL, NULL) != NMLP_OK) break;
        s->rows[s->n_proposed + 1] = propose_one(s, sampler, scratch, s->n_proposed);
        s->n_proposed++;
    }
    return s->n_proposed;
}

/* max(0, p - q), normalised; where rounding leaves nothing of it, p. */
static int32_t draw_rest(const nmlp_speculation *s, nmlp_sampler *sampler, const float *q) {
    double sum = 0;
    for (int64_t i = 0; i < s->vocab; i++) sum += s->p[i] > q[i] ? (double)(s->p[i] - q[i]) : 0;
    for (int64_t i = 0; sum > 0 && i < s->vocab; i++) s->p[i] = s->p[i] > q[i] ? s->p[i] - q[i] : 0;
    return nmlp_sampler_draw(sampler, s->p);
}

/* Whether the proposal `at` is kept; otherwise the token in its place. */
static bool keep(nmlp_speculation *s, nmlp_sampler *sampler, nmlp_sampler_scratch *scratch, int64_t at,
                 int32_t *token) {
    const float *logits = s->logits + at * s->vocab;
    int32_t proposed = s->rows[1 + at];
    if (s->greedy) {
        *token = (int32_t)nmlp_argmax(logits, s->vocab);
        return *token == proposed;
    }
    const float *q = s->q + at * s->vocab;
    nmlp_sampler_distribution(sampler, scratch, logits, s->p);
    *token = proposed;
    if (nmlp_rng_uniform(&sampler->rng) * (double)q[proposed] < (double)s->p[proposed]) return true;
    *token = draw_rest(s, sampler, q);
    return false;
}

int64_t nmlp_speculation_verify(nmlp_speculation *s, nmlp_sampler *sampler, nmlp_sampler_scratch *scratch,
                                int32_t tokens[1 + NMLP_PROPOSALS_MAX]) {
    int64_t n_kept = 0, n = 0;
    bool all = true;
    while (all && n_kept < s->n_proposed) {
        all = keep(s, sampler, scratch, n_kept, &tokens[n++]);
        n_kept += all;
    }
    if (all) tokens[n++] = nmlp_sampler_next(sampler, scratch, s->logits + n_kept * s->vocab);
    nmlp_batch_truncate(s->draft, s->sequence, s->n_text + n_kept);
    if (s->n_proposed > 0) s->n_wanted = all ? nmlp_min(NMLP_PROPOSALS_MAX, s->n_wanted + 1) : nmlp_max(1, n_kept + 1);
    return n;
}
