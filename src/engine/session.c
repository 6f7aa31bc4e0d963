#include "engine/session_internal.h"

#include <string.h>

#include "engine/forward_cpu.h"

enum { PIECES_MAX = 128 }; /* of one chunk; more only make it end early */

struct nmlp_session {
    nmlp_cpu_forward forward; /* with a cache of one text in one piece */
    int64_t length;
    float *last_row; /* [H] final hidden state of the last token */
    float *logits;   /* [V] */
};

nmlp_status nmlp_session_create_cpu(nmlp_session **out, const nmlp_cpu_weights *w, int64_t context, int64_t chunk,
                                    bool observed, nmlp_err *err) {
    const nmlp_config *c = &w->model->config;
    nmlp_status st = NMLP_OK;
    *out = NULL;
    if (context < 1 || context > c->max_positions)
        return nmlp_fail(err, NMLP_E_LIMIT, "a context of %lld tokens was asked for; the model takes 1 to %lld",
                         (long long)context, (long long)c->max_positions);
    nmlp_session *s = nmlp_mem_new(1, sizeof *s, err);
    if (!s) return NMLP_E_NOMEM;
    nmlp_cpu_cache cache = nmlp_cpu_cache_of_text(w, context);
    if (chunk < 1) chunk = NMLP_CHUNK_DEFAULT;
    NMLP_TRY(nmlp_cpu_forward_init(&s->forward, w, &cache, chunk < context ? chunk : context, 1, observed, err));
    s->last_row = nmlp_mem_new((size_t)c->hidden, sizeof *s->last_row, err);
    s->logits = nmlp_mem_new((size_t)c->vocab, sizeof *s->logits, err);
    if (!s->last_row || !s->logits) NMLP_TRY(NMLP_E_NOMEM);
    *out = s;
out:
    if (st != NMLP_OK) {
        nmlp_fail_context(err, "a session of %lld tokens", (long long)context);
        nmlp_session_destroy(s);
    }
    return st;
}

void nmlp_session_destroy(nmlp_session *s) {
    if (!s) return;
    nmlp_cpu_forward_fini(&s->forward);
    nmlp_mem_free(s->last_row);
    nmlp_mem_free(s->logits);
    nmlp_mem_free(s);
}

const nmlp_cpu_weights *nmlp_session_weights(const nmlp_session *s) { return s->forward.weights; }

void nmlp_session_set_observer(nmlp_session *s, const nmlp_observer *observer) {
    s->forward.observer = observer ? *observer : (nmlp_observer){0};
}

int64_t nmlp_session_context(const nmlp_session *s) { return s->forward.cache.len; }
int64_t nmlp_session_chunk(const nmlp_session *s) { return s->forward.chunk; }
int64_t nmlp_session_length(const nmlp_session *s) { return s->length; }

void nmlp_session_truncate(nmlp_session *s, int64_t length) {
    if (length >= 0 && length < s->length) s->length = length;
}

/* ---- one layer at a time ---- */

void nmlp_session_run_layer(nmlp_session *s, int64_t layer, float *rows, int64_t first, int64_t n) {
    nmlp_cpu_forward_attention(&s->forward, layer, rows, &(nmlp_cpu_rows){.n = n, .first = first}, 1, n);
    nmlp_cpu_forward_mlp(&s->forward, layer, rows, n);
}

void nmlp_session_run_attention(nmlp_session *s, int64_t layer, float *rows, int64_t first, int64_t n,
                                float *mlp_input) {
    nmlp_cpu_forward_attention(&s->forward, layer, rows, &(nmlp_cpu_rows){.n = n, .first = first}, 1, n);
    nmlp_cpu_forward_mlp_input(&s->forward, layer, rows, n, mlp_input);
}

void nmlp_session_add_mlp(nmlp_session *s, int64_t layer, float *rows, float *y, int64_t n) {
    nmlp_cpu_forward_add_mlp(&s->forward, layer, rows, y, n);
}

static nmlp_status check_ids(const nmlp_session *s, const int32_t *ids, int64_t n, nmlp_err *err) {
    int64_t vocab = s->forward.weights->model->config.vocab;
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab)
            return nmlp_fail(err, NMLP_E_ARG, "token id %d at position %lld is outside the vocabulary of %lld", ids[i],
                             (long long)i, (long long)vocab);
    }
    return NMLP_OK;
}

nmlp_status nmlp_session_embed(nmlp_session *s, const int32_t *ids, int64_t n, float *rows, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(check_ids(s, ids, n, err));
    nmlp_cpu_forward_embed(&s->forward, ids, n, rows);
    return NMLP_OK;
}

void nmlp_session_route(nmlp_session *s, int64_t layer, const float *x, int64_t n, nmlp_expert_choice *choices) {
    nmlp_cpu_experts_route(&s->forward.experts, s->forward.weights, layer, x, n, choices);
}

void nmlp_session_final_norm(nmlp_session *s, const float *rows, int64_t n, float *out) {
    nmlp_cpu_forward_final_norm(&s->forward, rows, n, out);
}

/* ---- texts ---- */

/* The embedded rows of one chunk through all layers and out. `label` is what on_rows hears of the first row. */
static void run_chunk(nmlp_session *s, const nmlp_cpu_rows *pieces, int64_t n_pieces, int64_t n, int64_t label,
                      nmlp_rows_fn *on_rows, void *ctx) {
    nmlp_cpu_forward *f = &s->forward;
    const nmlp_config *c = &f->weights->model->config;
    for (int64_t l = 0; l < c->n_layers; l++) {
        nmlp_cpu_forward_attention_in_turn(f, l, f->hidden, pieces, n_pieces, n);
        nmlp_cpu_forward_mlp(f, l, f->hidden, n);
    }
    s->length = pieces[n_pieces - 1].first + pieces[n_pieces - 1].n;
    if (on_rows) {
        nmlp_cpu_forward_final_norm(f, f->hidden, n, f->normed);
        memcpy(s->last_row, f->normed + (n - 1) * c->hidden, (size_t)c->hidden * sizeof *s->last_row);
        on_rows(ctx, s, f->normed, label, n);
    } else { /* only the last token's logits can be asked for */
        nmlp_cpu_forward_final_norm(f, f->hidden + (n - 1) * c->hidden, 1, s->last_row);
    }
}

nmlp_status nmlp_session_append(nmlp_session *s, const int32_t *ids, int64_t n, nmlp_rows_fn *on_rows, void *ctx,
                                nmlp_err *err) {
    nmlp_cpu_forward *f = &s->forward;
    NMLP_RETURN_IF_FAILED(check_ids(s, ids, n, err));
    if (n > f->cache.len - s->length) {
        nmlp_fail(err, NMLP_E_LIMIT, "%lld tokens do not fit: the context holds %lld, %lld are used", (long long)n,
                  (long long)f->cache.len, (long long)s->length);
        nmlp_fail_hint(err, "shorten the text or raise `context` (this model takes up to %lld)",
                       (long long)f->weights->model->config.max_positions);
        return NMLP_E_LIMIT;
    }
    for (int64_t done = 0; done < n; done += f->chunk) {
        nmlp_cpu_rows piece = {.n = n - done < f->chunk ? n - done : f->chunk, .first = s->length};
        nmlp_cpu_forward_embed(f, ids + done, piece.n, f->hidden);
        run_chunk(s, &piece, 1, piece.n, piece.first, on_rows, ctx);
    }
    return NMLP_OK;
}

static nmlp_status check_segments(const nmlp_session *s, const nmlp_segment *segments, int64_t n, nmlp_err *err) {
    int64_t known = s->length, context = s->forward.cache.len;
    for (int64_t i = 0; i < n; i++) {
        const nmlp_segment *segment = &segments[i];
        if (segment->n < 0 || segment->first < 0 || segment->first > known)
            return nmlp_fail(err, NMLP_E_ARG, "segment %lld begins at position %lld; positions below %lld are filled",
                             (long long)i, (long long)segment->first, (long long)known);
        if (segment->n > context - segment->first)
            return nmlp_fail(err, NMLP_E_LIMIT, "segment %lld ends at position %lld; the context holds %lld",
                             (long long)i, (long long)(segment->first + segment->n), (long long)context);
        NMLP_RETURN_IF_FAILED(check_ids(s, segment->ids, segment->n, err));
        known = segment->first + segment->n;
    }
    return NMLP_OK;
}

nmlp_status nmlp_session_run_packed(nmlp_session *s, const nmlp_segment *segments, int64_t n_segments,
                                    nmlp_rows_fn *on_rows, void *ctx, nmlp_err *err) {
    nmlp_cpu_forward *f = &s->forward;
    int64_t hidden = f->weights->model->config.hidden;
    int64_t i = 0, used = 0, label = 0;
    NMLP_RETURN_IF_FAILED(check_segments(s, segments, n_segments, err));
    while (i < n_segments) {
        nmlp_cpu_rows pieces[PIECES_MAX];
        int64_t n_pieces = 0, n = 0;
        while (i < n_segments && n < f->chunk && n_pieces < PIECES_MAX) {
            const nmlp_segment *segment = &segments[i];
            int64_t take = segment->n - used < f->chunk - n ? segment->n - used : f->chunk - n;
            if (take > 0) {
                nmlp_cpu_forward_embed(f, segment->ids + used, take, f->hidden + n * hidden);
                pieces[n_pieces++] = (nmlp_cpu_rows){.row = n, .n = take, .first = segment->first + used};
            }
            n += take;
            used += take;
            if (used == segment->n) {
                i++;
                used = 0;
            }
        }
        if (n > 0) run_chunk(s, pieces, n_pieces, n, label, on_rows, ctx);
        label += n;
    }
    return NMLP_OK;
}

void nmlp_session_logits(nmlp_session *s, const float *rows, int64_t n, float *logits) {
    nmlp_cpu_forward_logits(&s->forward, rows, n, logits);
}

const float *nmlp_session_last_logits(nmlp_session *s) {
    nmlp_session_logits(s, s->last_row, 1, s->logits);
    return s->logits;
}
