#include "eval/perplexity.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/ints.h"
#include "base/mem.h"
#include "engine/score.h"
#include "text/unicode.h"
#include "text/utf8.h"

static const nmlp_ppl_preset presets[] = {
    {"wikitext2", "WikiText-2 raw test split, lines joined as in the file"},
    {"ptb", "Penn Treebank test split, one sentence a line"},
    {"c4", "C4 English validation documents, joined"},
};

const nmlp_ppl_preset *nmlp_ppl_preset_find(const char *name) {
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        if (strcmp(presets[i].name, name) == 0) return &presets[i];
    }
    return NULL;
}

nmlp_status nmlp_ppl_options_check(nmlp_ppl_options *o, const nmlp_config *config, nmlp_err *err) {
    if (o->ctx == 0)
        o->ctx = config->max_positions < NMLP_PPL_CTX_DEFAULT ? config->max_positions : NMLP_PPL_CTX_DEFAULT;
    if (o->ctx < 2 || o->ctx > config->max_positions)
        return nmlp_fail_field(err, NMLP_E_LIMIT, "context",
                               "is %" PRId64 "; this model takes windows of 2 to %" PRId64 " tokens", o->ctx,
                               config->max_positions);
    if (o->rolling && o->stride != 0 && o->stride != o->ctx)
        return nmlp_fail_field(err, NMLP_E_ARG, "stride", "does not go with `rolling` windows");
    if (o->stride == 0) o->stride = o->ctx;
    if (o->stride < 1 || o->stride > o->ctx)
        return nmlp_fail_field(err, NMLP_E_ARG, "stride", "is %" PRId64 "; it must be 1 to the window of %" PRId64,
                               o->stride, o->ctx);
    if (o->max_tokens < 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "max_tokens", "is %" PRId64 "; it must not be negative", o->max_tokens);
    return NMLP_OK;
}

void nmlp_ppl_describe(nmlp_str *out, const nmlp_ppl_options *o) {
    nmlp_str_printf(out, "text encoded whole, %s; ",
                    o->rolling ? "behind BOS or else EOS, with what the template adds"
                    : o->bos   ? "BOS in front"
                               : "no special tokens");
    if (o->max_tokens) nmlp_str_printf(out, "first %" PRId64 " tokens; ", o->max_tokens);
    if (o->rolling) {
        nmlp_str_printf(out, "rolling windows of %" PRId64 " tokens, every token scored once; natural log", o->ctx);
        return;
    }
    nmlp_str_printf(out, "windows of %" PRId64 " tokens, ", o->ctx);
    if (o->stride == o->ctx) {
        nmlp_str_puts(out, "no overlap, the first token of a window not scored");
    } else {
        nmlp_str_printf(out, "one every %" PRId64 ", each token scored once", o->stride);
    }
    bool dropped = o->stride == o->ctx && !o->keep_partial;
    nmlp_str_printf(out, "; a last window that is not full is %s; natural log", dropped ? "dropped" : "kept");
}

int64_t nmlp_count_words(const char *text, size_t len) {
    int64_t n = 0;
    bool inside = false;
    for (size_t at = 0; at < len;) {
        uint32_t c = 0;
        int bytes = nmlp_utf8_decode(text + at, len - at, &c);
        bool space = bytes > 0 && nmlp_unicode_is_space(c);
        if (!space && !inside) n++;
        inside = !space;
        at += bytes > 0 ? (size_t)bytes : bytes < 0 ? (size_t)-bytes : len - at;
    }
    return n;
}

static bool next_rolling(const nmlp_text_windows *w, nmlp_text_window *window) {
    int64_t covered = nmlp_max(window->end, 1); /* the prefix is given */
    if (covered >= w->n_tokens) return false;
    int64_t end = nmlp_min(covered + w->ctx, w->n_tokens);
    *window = (nmlp_text_window){.begin = nmlp_max(end - w->ctx - 1, 0), .end = end, .score = covered};
    return true;
}

bool nmlp_text_window_next(const nmlp_text_windows *w, nmlp_text_window *window) {
    if (w->rolling) return next_rolling(w, window);
    bool first = window->end == 0;
    int64_t begin = first ? 0 : window->begin + w->stride;
    int64_t covered = window->end;
    if (covered >= w->n_tokens) return false;
    int64_t end = begin + w->ctx < w->n_tokens ? begin + w->ctx : w->n_tokens;
    if (w->drop_partial && end - begin < w->ctx) return false;
    int64_t score = nmlp_max(begin + 1, covered);
    if (score >= end) return false;
    *window = (nmlp_text_window){.begin = begin, .end = end, .score = score};
    return true;
}

int64_t nmlp_text_windows_scored(const nmlp_text_windows *w) {
    nmlp_text_window window = {0};
    int64_t n = 0;
    while (nmlp_text_window_next(w, &window)) n += window.end - window.score;
    return n;
}

static nmlp_status run_windows(nmlp_ppl_result *r, const nmlp_engine *engine, const int32_t *ids,
                               const nmlp_text_windows *windows, const nmlp_ppl_options *o, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_score_options scoring = {.stage = o->stage ? o->stage : "perplexity", .progress = o->progress};
    nmlp_text_window window = {0};
    size_t n = 0;
    while (nmlp_text_window_next(windows, &window)) n++;
    nmlp_score_text *texts = nmlp_mem_new(n, sizeof *texts, err);
    double *loglik = nmlp_mem_new(n, sizeof *loglik, err);
    if (!texts || !loglik) NMLP_TRY(NMLP_E_NOMEM);
    window = (nmlp_text_window){0};
    for (size_t i = 0; nmlp_text_window_next(windows, &window); i++) {
        texts[i] = (nmlp_score_text){.ids = ids + window.begin,
                                     .n = window.end - window.begin,
                                     .score = window.score - window.begin,
                                     .loglik = &loglik[i]};
        r->n_scored += window.end - window.score;
        r->n_covered = window.end;
    }
    NMLP_TRY(nmlp_score_texts(engine, texts, (int64_t)n, &scoring, &r->n_run, err));
    for (size_t i = 0; i < n; i++) r->nll_sum -= loglik[i];
out:
    nmlp_mem_free(texts);
    nmlp_mem_free(loglik);
    return st;
}

nmlp_status nmlp_perplexity_ids(nmlp_ppl_result *r, const nmlp_engine *engine, const int32_t *ids, int64_t n,
                                const nmlp_ppl_options *options, nmlp_err *err) {
    nmlp_ppl_options o = *options;
    *r = (nmlp_ppl_result){.word_ppl = NAN, .bits_per_byte = NAN};
    NMLP_RETURN_IF_FAILED(nmlp_ppl_options_check(&o, &nmlp_engine_model(engine)->config, err));
    if (o.max_tokens && n > o.max_tokens) n = o.max_tokens;
    /* A text shorter than one window is all there is to score. */
    bool drop = !o.rolling && !o.keep_partial && o.stride == o.ctx && n >= o.ctx;
    nmlp_text_windows windows = {
        .n_tokens = n, .ctx = o.ctx, .stride = o.stride, .drop_partial = drop, .rolling = o.rolling};
    if (nmlp_text_windows_scored(&windows) == 0) {
        nmlp_fail(err, NMLP_E_LIMIT, "a text of %" PRId64 " tokens has nothing to score in windows of %" PRId64, n,
                  o.ctx);
        nmlp_fail_hint(err, "2 tokens are needed at least");
        return NMLP_E_LIMIT;
    }
    r->ctx = o.ctx;
    r->stride = o.stride;
    r->n_tokens = n;
    double start = nmlp_clock_seconds();
    nmlp_status st = run_windows(r, engine, ids, &windows, &o, err);
    r->seconds = nmlp_clock_seconds() - start;
    r->nll = r->nll_sum / (double)r->n_scored;
    r->ppl = exp(r->nll);
    return st;
}

/* Words and bytes of what the windows cover: the text, or what its first ids spell. */
static nmlp_status count_text(nmlp_ppl_result *r, const nmlp_tokenizer *tokenizer, const char *text, size_t len,
                              const nmlp_ids *ids, nmlp_err *err) {
    nmlp_str used;
    nmlp_status st = NMLP_OK;
    nmlp_str_init(&used);
    if ((size_t)r->n_covered < ids->len) {
        NMLP_TRY(nmlp_tokenizer_decode(tokenizer, ids->data, (size_t)r->n_covered, true, &used, err));
        text = nmlp_str_text(&used);
        len = used.len;
    }
    r->n_words = nmlp_count_words(text, len);
    r->n_bytes = (int64_t)len;
    r->word_ppl = exp(r->nll_sum / (double)r->n_words);
    r->bits_per_byte = r->nll_sum / (double)r->n_bytes / log(2.0);
out:
    nmlp_str_fini(&used);
    return st;
}

/* What the harness puts in front of a text so that its first token can be scored: the tokenizer's BOS or else its EOS.
 * Where the tokenizer names neither, the harness fails; then those of the configuration. */
static int64_t prefix_id(const nmlp_tokenizer *tokenizer, const nmlp_config *c) {
    const int64_t ids[] = {nmlp_tokenizer_bos_id(tokenizer), nmlp_tokenizer_eos_id(tokenizer), c->bos_id,
                           c->n_stop_ids > 0 ? c->stop_ids[0] : -1};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        if (ids[i] >= 0) return ids[i];
    return -1;
}

static nmlp_status put_prefix(nmlp_ids *ids, const nmlp_tokenizer *tokenizer, const nmlp_config *c, nmlp_err *err) {
    int64_t id = prefix_id(tokenizer, c);
    if (id < 0 || id >= c->vocab)
        return nmlp_fail_field(err, NMLP_E_ARG, "rolling",
                               "needs a begin-of-text or end-of-text token, and there is none");
    return nmlp_ids_push(ids, (int32_t)id, err);
}

/* Rolling windows have what the template puts around a text, scored like the text, beside the prefix token: so does the
 * harness, unless the text itself begins with the prefix. */
static nmlp_bos around(const nmlp_tokenizer *tokenizer, const char *text, size_t len, const nmlp_ppl_options *o,
                       int32_t prefix) {
    size_t n = 0;
    if (!o->rolling) return o->bos ? NMLP_BOS_ALWAYS : NMLP_BOS_NONE;
    const char *own = nmlp_tokenizer_special_text(tokenizer, prefix, &n);
    bool begins = o->parse_special && own && n <= len && memcmp(text, own, n) == 0;
    return begins ? NMLP_BOS_NONE : NMLP_BOS_TEMPLATE;
}

nmlp_status nmlp_perplexity(nmlp_ppl_result *r, const nmlp_engine *engine, const nmlp_tokenizer *tokenizer,
                            const char *text, size_t len, const nmlp_ppl_options *options, nmlp_err *err) {
    nmlp_ids ids;
    nmlp_status st = NMLP_OK;
    nmlp_ids_init(&ids);
    if (options->rolling) NMLP_TRY(put_prefix(&ids, tokenizer, &nmlp_engine_model(engine)->config, err));
    nmlp_bos bos = around(tokenizer, text, len, options, ids.len ? ids.data[0] : -1);
    NMLP_TRY(nmlp_tokenizer_encode(tokenizer, text, len, bos, options->parse_special, &ids, err));
    NMLP_TRY(nmlp_perplexity_ids(r, engine, ids.data, (int64_t)ids.len, options, err));
    NMLP_TRY(count_text(r, tokenizer, text, len, &ids, err));
out:
    nmlp_ids_fini(&ids);
    return st;
}
