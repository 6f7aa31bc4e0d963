#include "engine/sampler.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { IN_TEXT = 1, IN_ANSWER = 2 };

nmlp_sampling nmlp_sampling_greedy(void) { return (nmlp_sampling){.top_p = 1, .repetition_penalty = 1}; }

nmlp_status nmlp_sampling_check(const nmlp_sampling *s, nmlp_err *err) {
    if (!(s->temperature >= 0 && isfinite(s->temperature)))
        return nmlp_fail_field(err, NMLP_E_ARG, "temperature", "is %g; it must be 0 or more", s->temperature);
    if (s->top_k < 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "top_k", "is %lld; it must be 0 or more", (long long)s->top_k);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return nmlp_fail_field(err, NMLP_E_ARG, "top_p", "is %g; it must be above 0, up to 1", s->top_p);
    if (!(s->min_p >= 0 && s->min_p < 1))
        return nmlp_fail_field(err, NMLP_E_ARG, "min_p", "is %g; it must be from 0 to below 1", s->min_p);
    if (!(s->repetition_penalty > 0 && isfinite(s->repetition_penalty)))
        return nmlp_fail_field(err, NMLP_E_ARG, "repetition_penalty", "is %g; it must be above 0",
                               s->repetition_penalty);
    if (!isfinite(s->presence_penalty))
        return nmlp_fail_field(err, NMLP_E_ARG, "presence_penalty", "is %g; it must be finite", s->presence_penalty);
    if (!isfinite(s->frequency_penalty))
        return nmlp_fail_field(err, NMLP_E_ARG, "frequency_penalty", "is %g; it must be finite", s->frequency_penalty);
    for (int64_t i = 0; i < s->n_biases; i++)
        if (s->biases[i].id < 0 || !isfinite(s->biases[i].bias))
            return nmlp_fail_field(err, NMLP_E_ARG, "logit_bias", "of token %d is %g; it must be finite",
                                   s->biases[i].id, (double)s->biases[i].bias);
    return NMLP_OK;
}

bool nmlp_sampling_is_plain(const nmlp_sampling *s) {
    return s->repetition_penalty == 1 && s->presence_penalty == 0 && s->frequency_penalty == 0 && s->n_biases == 0;
}

nmlp_status nmlp_sampler_scratch_init(nmlp_sampler_scratch *s, int64_t vocab, nmlp_err *err) {
    s->candidates = nmlp_mem_new((size_t)vocab, sizeof *s->candidates, err);
    s->other = nmlp_mem_new((size_t)vocab, sizeof *s->other, err);
    s->weights = nmlp_mem_new((size_t)vocab, sizeof *s->weights, err);
    if (s->candidates && s->other && s->weights) return NMLP_OK;
    nmlp_sampler_scratch_fini(s);
    return NMLP_E_NOMEM;
}

void nmlp_sampler_scratch_fini(nmlp_sampler_scratch *s) {
    nmlp_mem_free(s->candidates);
    nmlp_mem_free(s->other);
    nmlp_mem_free(s->weights);
    *s = (nmlp_sampler_scratch){0};
}

static nmlp_status add_biases(nmlp_sampler *s, nmlp_err *err) {
    const nmlp_sampling *o = &s->options;
    for (int64_t i = 0; i < o->n_biases; i++) {
        if (o->biases[i].id >= s->vocab)
            return nmlp_fail_field(err, NMLP_E_ARG, "logit_bias", "names token %d; the vocabulary has %lld",
                                   o->biases[i].id, (long long)s->vocab);
        s->added[o->biases[i].id] += o->biases[i].bias;
    }
    return NMLP_OK;
}

nmlp_status nmlp_sampler_init(nmlp_sampler *s, const nmlp_sampling *options, int64_t vocab, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    bool counts = options->presence_penalty != 0 || options->frequency_penalty != 0;
    *s = (nmlp_sampler){.options = *options, .vocab = vocab};
    NMLP_RETURN_IF_FAILED(nmlp_sampling_check(options, err));
    nmlp_rng_seed(&s->rng, options->seed);
    if (counts || options->repetition_penalty != 1) {
        s->seen = nmlp_mem_new((size_t)vocab, 1, err);
        if (!s->seen) NMLP_TRY(NMLP_E_NOMEM);
    }
    if (counts || options->n_biases > 0) {
        s->added = nmlp_mem_new((size_t)vocab, sizeof *s->added, err);
        if (!s->added) NMLP_TRY(NMLP_E_NOMEM);
        NMLP_TRY(add_biases(s, err));
    }
out:
    s->options.biases = NULL;
    s->options.n_biases = 0;
    if (st != NMLP_OK) nmlp_sampler_fini(s);
    return st;
}

void nmlp_sampler_fini(nmlp_sampler *s) {
    nmlp_mem_free(s->seen);
    nmlp_mem_free(s->added);
    *s = (nmlp_sampler){0};
}

void nmlp_sampler_accept_prompt(nmlp_sampler *s, int32_t id) {
    if (s->seen && id >= 0 && id < s->vocab) s->seen[id] |= IN_TEXT;
}

void nmlp_sampler_accept(nmlp_sampler *s, int32_t id) {
    if (!s->seen || id < 0 || id >= s->vocab) return;
    if (s->added) {
        if (!(s->seen[id] & IN_ANSWER)) s->added[id] -= (float)s->options.presence_penalty;
        s->added[id] -= (float)s->options.frequency_penalty;
    }
    s->seen[id] |= IN_TEXT | IN_ANSWER;
}

/* The largest of n values, NaN left out; lanes, so that compilers take many at once. */
static float top_of(const float *values, int64_t n) {
    enum { LANES = 32 };
    float tops[LANES], top = -INFINITY;
    for (int i = 0; i < LANES; i++) tops[i] = -INFINITY;
    int64_t whole = n - n % LANES;
    for (int64_t at = 0; at < whole; at += LANES)
        for (int i = 0; i < LANES; i++) tops[i] = values[at + i] > tops[i] ? values[at + i] : tops[i];
    for (int i = 0; i < LANES; i++) top = tops[i] > top ? tops[i] : top;
    for (int64_t i = whole; i < n; i++) top = values[i] > top ? values[i] : top;
    return top;
}

int64_t nmlp_argmax(const float *values, int64_t n) {
    enum { PART = 4096 }; /* searched again when it holds the largest so far */
    int64_t best = 0;
    float top = -INFINITY;
    for (int64_t first = 0; first < n; first += PART) {
        int64_t some = n - first < PART ? n - first : PART;
        float part_top = top_of(values + first, some);
        if (!(part_top > top)) continue;
        top = part_top;
        for (best = first; values[best] != top;) best++;
    }
    return best;
}

/* The logit that counts; NaN: the token cannot be chosen. Seen tokens become less likely whatever its sign. */
static float adjusted(const nmlp_sampler *s, const float *logits, int64_t id) {
    float penalty = (float)s->options.repetition_penalty;
    float logit = logits[id];
    if (s->allowed && !(s->allowed[id / 32] >> (id % 32) & 1)) return NAN;
    if (s->added) logit += s->added[id];
    if (!s->seen || !s->seen[id] || penalty == 1) return logit;
    return logit > 0 ? logit / penalty : logit * penalty;
}

/* Ascending as logits descend; 0 and -0 are equal. */
static uint32_t sort_key(float logit) {
    uint32_t bits;
    memcpy(&bits, &logit, sizeof bits);
    if (logit == 0) bits = 0;
    return bits >> 31 ? bits : bits ^ 0x7fffffffu;
}

enum { DIGIT_BITS = 8, DIGITS = 32 / DIGIT_BITS, DIGIT_VALUES = 1 << DIGIT_BITS };

/* Descending logits; equal ones stay by id, so that the order is total and the same everywhere. By digits from the last
 * on: a whole vocabulary is sorted for every token, which comparisons take ten times as long for. */
static void sort_candidates(nmlp_sampler_scratch *s, int64_t n) {
    int64_t first[DIGITS][DIGIT_VALUES] = {{0}};
    nmlp_token_candidate *from = s->candidates, *to = s->other;
    for (int64_t i = 0; i < n; i++)
        for (int d = 0; d < DIGITS; d++) first[d][sort_key(from[i].logit) >> (d * DIGIT_BITS) & (DIGIT_VALUES - 1)]++;
    for (int d = 0; d < DIGITS; d++) {
        int64_t before = 0;
        for (int v = 0; v < DIGIT_VALUES; v++) {
            int64_t count = first[d][v];
            first[d][v] = before;
            before += count;
        }
        for (int64_t i = 0; i < n; i++)
            to[first[d][sort_key(from[i].logit) >> (d * DIGIT_BITS) & (DIGIT_VALUES - 1)]++] = from[i];
        nmlp_token_candidate *read = from;
        from = to;
        to = read;
    }
}

static int64_t keep_likely(const nmlp_sampling *o, nmlp_sampler_scratch *s, int64_t n, double *total) {
    double sum = 0;
    double kept = 0;
    if (o->top_k > 0 && o->top_k < n) n = o->top_k;
    for (int64_t i = 0; i < n; i++) {
        s->weights[i] = exp(((double)s->candidates[i].logit - (double)s->candidates[0].logit) / o->temperature);
        sum += s->weights[i];
    }
    int64_t count = 0;
    while (count < n && (count == 0 || (kept < o->top_p * sum && s->weights[count] >= o->min_p * s->weights[0])))
        kept += s->weights[count++];
    *total = kept;
    return count;
}

static int32_t draw(nmlp_rng *rng, const nmlp_sampler_scratch *s, int64_t n, double total) {
    double target = nmlp_rng_uniform(rng) * total;
    for (int64_t i = 0; i < n - 1; i++) {
        target -= s->weights[i];
        if (target < 0) return s->candidates[i].id;
    }
    return s->candidates[n - 1].id;
}

/* Likeliest first; returns how many are left, their weights adding up to `total`. */
static int64_t filter(const nmlp_sampler *s, nmlp_sampler_scratch *scratch, const float *logits, double *total) {
    int64_t n = 0;
    for (int64_t id = 0; id < s->vocab; id++) {
        float logit = adjusted(s, logits, id);
        if (!isnan(logit)) scratch->candidates[n++] = (nmlp_token_candidate){.logit = logit, .id = (int32_t)id};
    }
    sort_candidates(scratch, n);
    return n > 0 ? keep_likely(&s->options, scratch, n, total) : 0;
}

static int32_t greedy(const nmlp_sampler *s, const float *logits) {
    int64_t best = -1;
    float top = 0;
    if (!s->allowed && !s->added && !s->seen) {
        best = nmlp_argmax(logits, s->vocab);
        if (logits[best] > -INFINITY) return (int32_t)best;
        best = -1;
    }
    for (int64_t id = 0; id < s->vocab; id++) {
        float logit = adjusted(s, logits, id);
        if (isnan(logit) || (best >= 0 && !(logit > top))) continue;
        best = id;
        top = logit;
    }
    return best < 0 && !s->allowed ? 0 : (int32_t)best;
}

int32_t nmlp_sampler_next(nmlp_sampler *s, nmlp_sampler_scratch *scratch, const float *logits) {
    double total;
    if (s->options.temperature == 0) return greedy(s, logits);
    int64_t n = filter(s, scratch, logits, &total);
    if (n == 0) return s->allowed ? -1 : 0;
    return draw(&s->rng, scratch, n, total);
}

void nmlp_sampler_distribution(const nmlp_sampler *s, nmlp_sampler_scratch *scratch, const float *logits,
                               float *probs) {
    double total;
    int64_t n = filter(s, scratch, logits, &total);
    for (int64_t id = 0; id < s->vocab; id++) probs[id] = 0;
    for (int64_t i = 0; i < n; i++) probs[scratch->candidates[i].id] = (float)(scratch->weights[i] / total);
}

int32_t nmlp_sampler_draw(nmlp_sampler *s, const float *probs) {
    double sum = 0;
    int32_t last = 0;
    for (int64_t id = 0; id < s->vocab; id++) sum += (double)probs[id];
    double target = nmlp_rng_uniform(&s->rng) * sum;
    for (int64_t id = 0; id < s->vocab; id++) {
        if (!(probs[id] > 0)) continue;
        last = (int32_t)id;
        target -= (double)probs[id];
        if (target < 0) break;
    }
    return last;
}
