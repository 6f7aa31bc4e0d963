#include "eval/choice_encode.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "text/unicode.h"
#include "text/utf8.h"

struct job {
    nmlp_encoded *out;
    const nmlp_questions *questions;
    const nmlp_tokenizer *tokenizer;
    nmlp_bos bos;
    nmlp_status *st; /* [n] */
    nmlp_err *err;   /* [threads] of the first failure of each */
    int64_t *failed; /* [threads] its question, or -1 */
};

/* Bytes of the text without white space at its end, as Python's rstrip. */
static size_t trimmed_len(const char *text) {
    size_t len = strlen(text), end = 0;
    for (size_t at = 0; at < len;) {
        uint32_t c = 0;
        int bytes = nmlp_utf8_decode(text + at, len - at, &c);
        size_t step = bytes > 0 ? (size_t)bytes : bytes < 0 ? (size_t)-bytes : len - at;
        bool space = bytes > 0 && nmlp_unicode_is_space(c);
        at += step;
        if (!space) end = at;
    }
    return end;
}

/* Appends the ids of context + continuation; *score receives the number of ids of the context alone. */
static nmlp_status encode_choice(struct job *j, const nmlp_question_choice *choice, nmlp_ids *ids, nmlp_ids *alone,
                                 bool again, int64_t *score, nmlp_str *text, nmlp_err *err) {
    if (!again) { /* else the context is the one just encoded */
        alone->len = 0;
        NMLP_RETURN_IF_FAILED(nmlp_tokenizer_encode(j->tokenizer, choice->context, trimmed_len(choice->context), j->bos,
                                                    false, alone, err));
    }
    *score = (int64_t)alone->len;
    nmlp_str_clear(text);
    nmlp_str_puts(text, choice->context);
    nmlp_str_puts(text, choice->continuation);
    NMLP_RETURN_IF_FAILED(nmlp_str_status(text, err));
    return nmlp_tokenizer_encode(j->tokenizer, nmlp_str_text(text), text->len, j->bos, false, ids, err);
}

static nmlp_status encode_question(struct job *j, int64_t i, nmlp_err *err) {
    const nmlp_question *q = &j->questions->items[i];
    nmlp_ids *ids = &j->out->ids[i];
    nmlp_score_text *sequences = j->out->sequences + j->out->first[i];
    size_t begin[NMLP_CHOICES_MAX];
    nmlp_ids alone;
    nmlp_str text;
    nmlp_status st = NMLP_OK;
    nmlp_ids_init(&alone);
    nmlp_str_init(&text);
    for (int64_t c = 0; c < q->n_choices; c++) {
        begin[c] = ids->len;
        bool again = c > 0 && q->choices[c].context == q->choices[c - 1].context;
        NMLP_TRY(encode_choice(j, &q->choices[c], ids, &alone, again, &sequences[c].score, &text, err));
        sequences[c].n = (int64_t)(ids->len - begin[c]);
        if (sequences[c].score >= sequences[c].n || sequences[c].score < 1) {
            st = nmlp_fail(err, NMLP_E_FORMAT, "the question of line %" PRId64 ": %s", q->line,
                           sequences[c].score < 1
                               ? "nothing stands before the text to score; a BOS in front would (`add_bos`)"
                               : "the text to score has no token of its own");
            goto out;
        }
    }
    for (int64_t c = 0; c < q->n_choices; c++) sequences[c].ids = ids->data + begin[c];
out:
    nmlp_ids_fini(&alone);
    nmlp_str_fini(&text);
    return st;
}

static void encode_range(void *ctx, int64_t begin, int64_t end, int thread) {
    struct job *j = ctx;
    for (int64_t i = begin; i < end && j->failed[thread] < 0; i++) {
        j->st[i] = encode_question(j, i, &j->err[thread]);
        if (j->st[i] != NMLP_OK) j->failed[thread] = i;
    }
}

static nmlp_status encode_all(struct job *j, nmlp_pool *pool, nmlp_err *err) {
    int n_threads = nmlp_pool_threads(pool);
    int worst = -1;
    nmlp_status st = NMLP_OK;
    j->st = nmlp_mem_new((size_t)j->out->n, sizeof *j->st, err);
    j->err = nmlp_mem_new((size_t)n_threads, sizeof *j->err, err);
    j->failed = nmlp_mem_new((size_t)n_threads, sizeof *j->failed, err);
    if (!j->st || !j->err || !j->failed) {
        st = NMLP_E_NOMEM;
        goto out;
    }
    for (int t = 0; t < n_threads; t++) j->failed[t] = -1;
    nmlp_pool_for(pool, j->out->n, 16, encode_range, j);
    for (int t = 0; t < n_threads; t++) {
        if (j->failed[t] >= 0 && (worst < 0 || j->failed[t] < j->failed[worst])) worst = t;
    }
    if (worst >= 0) {
        st = j->st[j->failed[worst]];
        if (err) *err = j->err[worst];
    }
out:
    nmlp_mem_free(j->st);
    nmlp_mem_free(j->err);
    nmlp_mem_free(j->failed);
    return st;
}

/* As the harness: keep the last max+1 tokens, run all but the last of them. */
static void fit(nmlp_encoded *e, int64_t max_positions) {
    for (int64_t i = 0; i < e->first[e->n]; i++) {
        nmlp_score_text *s = &e->sequences[i];
        int64_t drop = s->n - 1 - max_positions;
        if (drop > 0) {
            s->ids += drop;
            s->n -= drop;
            s->score = s->score > drop ? s->score - drop : 1;
            e->n_truncated++;
        }
        if (s->n - 1 > e->longest) e->longest = s->n - 1;
    }
}

nmlp_status nmlp_encoded_create(nmlp_encoded *e, const nmlp_questions *questions, const nmlp_tokenizer *tokenizer,
                                nmlp_bos bos, int64_t max_positions, nmlp_pool *pool, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    int64_t n = (int64_t)questions->n;
    *e = (nmlp_encoded){0};
    e->first = nmlp_mem_new((size_t)n + 1, sizeof *e->first, err);
    e->ids = nmlp_mem_new((size_t)n, sizeof *e->ids, err);
    if (e->first && e->ids) {
        for (int64_t i = 0; i < n; i++) e->first[i + 1] = e->first[i] + questions->items[i].n_choices;
        e->sequences = nmlp_mem_new((size_t)e->first[n], sizeof *e->sequences, err);
    }
    if (!e->sequences) {
        nmlp_encoded_destroy(e);
        return NMLP_E_NOMEM;
    }
    e->n = n;
    struct job job = {.out = e, .questions = questions, .tokenizer = tokenizer, .bos = bos};
    NMLP_TRY(encode_all(&job, pool, err));
    fit(e, max_positions);
out:
    if (st != NMLP_OK) nmlp_encoded_destroy(e);
    return st;
}

void nmlp_encoded_destroy(nmlp_encoded *e) {
    for (int64_t i = 0; i < e->n; i++) nmlp_ids_fini(&e->ids[i]);
    nmlp_mem_free(e->sequences);
    nmlp_mem_free(e->first);
    nmlp_mem_free(e->ids);
    *e = (nmlp_encoded){0};
}
