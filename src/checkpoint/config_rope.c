/* How positions turn queries and keys: the keys of config.json for it. */
#include <math.h>
#include <string.h>

#include "checkpoint/config_internal.h"

static const char *const kind_names[] = {"default", "linear", "dynamic", "yarn", "llama3", "longrope"};
enum { N_KINDS = sizeof kind_names / sizeof kind_names[0] };

static nmlp_status refuse_factors(const nmlp_json_doc *doc, const char *kind, nmlp_err *err) {
    return nmlp_fail(err, NMLP_E_FORMAT, "%s: %s rope scaling has factors that make no sense", doc->origin, kind);
}

static nmlp_status read_llama3(nmlp_rope_config *rope, const nmlp_json_doc *doc, const nmlp_json *scaling,
                               nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_json_need_number(doc, scaling, "low_freq_factor", &rope->low_freq_factor, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_number(doc, scaling, "high_freq_factor", &rope->high_freq_factor, err));
    if (rope->high_freq_factor > rope->low_freq_factor && rope->low_freq_factor > 0) return NMLP_OK;
    return refuse_factors(doc, "llama3", err);
}

static double yarn_scale(double factor, double weight) { return factor > 1 ? 0.1 * weight * log(factor) + 1 : 1; }

static nmlp_status read_yarn(nmlp_rope_config *rope, const nmlp_json_doc *doc, const nmlp_json *scaling,
                             nmlp_err *err) {
    double mscale = 0, mscale_all = 0;
    rope->beta_fast = 32;
    rope->beta_slow = 1;
    rope->truncate = true;
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, scaling, "mscale", &mscale, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, scaling, "mscale_all_dim", &mscale_all, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, scaling, "beta_fast", &rope->beta_fast, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, scaling, "beta_slow", &rope->beta_slow, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, scaling, "truncate", &rope->truncate, err));
    rope->attention_factor = mscale != 0 && mscale_all != 0
                                 ? yarn_scale(rope->factor, mscale) / yarn_scale(rope->factor, mscale_all)
                                 : yarn_scale(rope->factor, 1);
    if (rope->beta_fast == 0) rope->beta_fast = 32;
    if (rope->beta_slow == 0) rope->beta_slow = 1;
    if (rope->beta_fast > 0 && rope->beta_slow > 0 && rope->theta != 1) return NMLP_OK;
    return refuse_factors(doc, "yarn", err);
}

static nmlp_status read_factors(float *factors, int64_t n, const nmlp_json_doc *doc, const nmlp_json *scaling,
                                const char *key, nmlp_err *err) {
    const nmlp_json *list = nmlp_json_get(scaling, key);
    int64_t i = 0;
    if ((int64_t)nmlp_json_count(list) != n || !nmlp_json_is_array(list))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: key \"%s\" must be a list of %lld numbers", doc->origin, key,
                         (long long)n);
    for (const nmlp_json *v = nmlp_json_first(list); v; v = nmlp_json_next(v)) {
        factors[i] = (float)nmlp_json_number(v);
        if (!(factors[i] > 0) || !isfinite(factors[i])) return refuse_factors(doc, key, err);
        i++;
    }
    return NMLP_OK;
}

static nmlp_status read_longrope(nmlp_rope_config *rope, int64_t rope_dim, const nmlp_json_doc *doc,
                                 const nmlp_json *scaling, nmlp_err *err) {
    rope->n_factors = rope_dim / 2;
    if (rope->n_factors > NMLP_ROPE_FACTORS_MAX)
        return nmlp_fail(err, NMLP_E_LIMIT, "%s: longrope of more than %d dimensions", doc->origin,
                         2 * NMLP_ROPE_FACTORS_MAX);
    NMLP_RETURN_IF_FAILED(read_factors(rope->short_factor, rope->n_factors, doc, scaling, "short_factor", err));
    NMLP_RETURN_IF_FAILED(read_factors(rope->long_factor, rope->n_factors, doc, scaling, "long_factor", err));
    rope->attention_factor = rope->factor > 1 ? sqrt(1 + log(rope->factor) / log(rope->original_max_positions)) : 1;
    return NMLP_OK;
}

static nmlp_status read_kind(nmlp_rope_config *rope, const nmlp_config *c, const nmlp_json_doc *doc,
                             const nmlp_json *scaling, nmlp_err *err) {
    const nmlp_json *kind = nmlp_json_get(scaling, "rope_type");
    if (nmlp_json_is_null(kind)) kind = nmlp_json_get(scaling, "type"); /* older spelling */
    const char *name = nmlp_json_is_null(kind) ? "default" : nmlp_json_string(kind);
    bool is_phi3 = strcmp(c->family, "phi3") == 0;
    if (is_phi3 && (strcmp(name, "su") == 0 || strcmp(name, "yarn") == 0)) name = "longrope"; /* its older names */
    for (int i = 0; i < N_KINDS; i++) {
        if (strcmp(name, kind_names[i]) != 0) continue;
        rope->kind = (nmlp_rope_kind)i;
        return NMLP_OK;
    }
    return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                     "%s: rope scaling \"%s\" is not supported; supported are default, linear, dynamic, yarn, llama3, "
                     "longrope",
                     doc->origin, name);
}

/* One set of parameters; `scaling` may be absent. theta holds the value for an absent key. */
static nmlp_status read_one(nmlp_rope_config *rope, const nmlp_config *c, const nmlp_json_doc *doc,
                            const nmlp_json *scaling, nmlp_err *err) {
    double most = (double)c->max_positions;
    double attention_factor = 0;
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, scaling, "rope_theta", &rope->theta, err));
    if (!(rope->theta > 0)) return nmlp_fail(err, NMLP_E_FORMAT, "%s: rope_theta must be positive", doc->origin);
    if (!nmlp_json_is_object(scaling)) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(read_kind(rope, c, doc, scaling, err));
    if (rope->kind == NMLP_ROPE_DEFAULT) return NMLP_OK;
    rope->original_max_positions = most;
    if (rope->kind >= NMLP_ROPE_YARN) {
        const char *const key = "original_max_position_embeddings";
        NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, scaling, key, &rope->original_max_positions, err));
        if (strcmp(c->family, "phi3") == 0) rope->original_max_positions = 4096; /* what its class says */
        NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, doc->root, key, &rope->original_max_positions, err));
    }
    rope->factor = most / rope->original_max_positions;
    if (rope->kind == NMLP_ROPE_YARN || rope->kind == NMLP_ROPE_LONGROPE)
        NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, scaling, "factor", &rope->factor, err));
    else
        NMLP_RETURN_IF_FAILED(nmlp_json_need_number(doc, scaling, "factor", &rope->factor, err));
    if (!(rope->factor > 0 && rope->original_max_positions > 1))
        return refuse_factors(doc, kind_names[rope->kind], err);
    if (rope->kind == NMLP_ROPE_LLAMA3) NMLP_RETURN_IF_FAILED(read_llama3(rope, doc, scaling, err));
    if (rope->kind == NMLP_ROPE_YARN) NMLP_RETURN_IF_FAILED(read_yarn(rope, doc, scaling, err));
    if (rope->kind == NMLP_ROPE_LONGROPE) NMLP_RETURN_IF_FAILED(read_longrope(rope, c->rope_dim, doc, scaling, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, scaling, "attention_factor", &attention_factor, err));
    if (attention_factor != 0) rope->attention_factor = attention_factor;
    return isfinite(rope->attention_factor) ? NMLP_OK : refuse_factors(doc, kind_names[rope->kind], err);
}

static nmlp_status read_partial(nmlp_config *c, const nmlp_json_doc *doc, const nmlp_json *scaling, nmlp_err *err) {
    double partial = 1;
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, doc->root, "partial_rotary_factor", &partial, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, scaling, "partial_rotary_factor", &partial, err));
    if (partial != 1 && !c->features->partial_rope)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: partial_rotary_factor %g is not supported, only 1", doc->origin,
                         partial);
    if (!(partial > 0 && partial <= 1))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: partial_rotary_factor must be above 0 and at most 1", doc->origin);
    c->rope_dim = (int64_t)((double)c->head_dim * partial);
    if (c->rope_dim >= 2 && c->rope_dim % 2 == 0) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_FORMAT, "%s: partial_rotary_factor %g leaves %lld dimensions; they must be even",
                     doc->origin, partial, (long long)c->rope_dim);
}

/* Layers with a window turn by parameters of their own: nested ones, or the older keys of Gemma 3. */
static nmlp_status read_two(nmlp_config *c, const nmlp_json_doc *doc, const nmlp_json *newer, const nmlp_json *scaling,
                            nmlp_err *err) {
    const nmlp_json *full = nmlp_json_get(newer, "full_attention");
    const nmlp_json *local = nmlp_json_get(newer, "sliding_attention");
    if (nmlp_json_is_object(newer) && !nmlp_json_is_object(full) && !nmlp_json_is_object(local))
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: rope_parameters of a %s model must have full_attention and sliding_attention",
                         doc->origin, c->family);
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, doc->root, "rope_local_base_freq", &c->local_rope.theta, err));
    NMLP_RETURN_IF_FAILED(read_one(&c->rope, c, doc, nmlp_json_is_object(newer) ? full : scaling, err));
    NMLP_RETURN_IF_FAILED(read_one(&c->local_rope, c, doc, local, err));
    if (c->rope.kind != NMLP_ROPE_DYNAMIC && c->local_rope.kind != NMLP_ROPE_DYNAMIC) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: dynamic rope scaling beside a second rope is not supported",
                     doc->origin);
}

nmlp_status nmlp_config_read_rope(nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_json *newer = nmlp_json_get(doc->root, "rope_parameters");
    const nmlp_json *scaling = nmlp_json_get(doc->root, "rope_scaling");
    c->rope = (nmlp_rope_config){.theta = c->features->theta};
    c->local_rope = (nmlp_rope_config){.theta = c->features->local_theta};
    if (nmlp_json_is_object(newer) && nmlp_json_is_object(scaling) && !nmlp_json_equal(newer, scaling)) {
        nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: rope_scaling and rope_parameters are both set and differ", doc->origin);
        nmlp_fail_hint(err, "keep the one that is meant, with rope_theta, and remove the other");
        return NMLP_E_UNSUPPORTED;
    }
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, doc->root, "rope_theta", &c->rope.theta, err));
    if (c->features->local_theta > 0) {
        NMLP_RETURN_IF_FAILED(read_partial(c, doc, NULL, err));
        return read_two(c, doc, newer, scaling, err);
    }
    if (nmlp_json_is_object(newer)) scaling = newer;
    NMLP_RETURN_IF_FAILED(read_partial(c, doc, scaling, err));
    NMLP_RETURN_IF_FAILED(read_one(&c->rope, c, doc, scaling, err));
    if (c->features->query_growth) {
        NMLP_RETURN_IF_FAILED(nmlp_json_need_number(doc, scaling, "llama_4_scaling_beta", &c->rope.query_growth, err));
        if (c->rope.original_max_positions < 1)
            return nmlp_fail(err, NMLP_E_FORMAT, "%s: llama_4_scaling_beta without original_max_position_embeddings",
                             doc->origin);
    }
    if (c->rope.kind == NMLP_ROPE_DYNAMIC) /* beyond its maximum is what it is for */
        c->max_positions = (int64_t)fmin((double)c->max_positions * fmax(1, c->rope.factor), 0x1p31);
    return NMLP_OK;
}

static void put_factors(nmlp_json_writer *w, const char *key, const float *factors, int64_t n) {
    nmlp_json_begin_array(w, key);
    for (int64_t i = 0; i < n; i++) nmlp_json_put_number(w, NULL, (double)factors[i]);
    nmlp_json_end_array(w);
}

static void put_one(const nmlp_rope_config *rope, bool with_theta, const char *key, nmlp_json_writer *w) {
    nmlp_rope_kind kind = rope->kind;
    nmlp_json_begin_object(w, key);
    nmlp_json_put_string(w, "rope_type", kind_names[kind]);
    if (with_theta) nmlp_json_put_number(w, "rope_theta", rope->theta);
    if (kind != NMLP_ROPE_DEFAULT) nmlp_json_put_number(w, "factor", rope->factor);
    if (kind == NMLP_ROPE_LLAMA3) {
        nmlp_json_put_number(w, "low_freq_factor", rope->low_freq_factor);
        nmlp_json_put_number(w, "high_freq_factor", rope->high_freq_factor);
    }
    if (kind == NMLP_ROPE_YARN) {
        nmlp_json_put_number(w, "beta_fast", rope->beta_fast);
        nmlp_json_put_number(w, "beta_slow", rope->beta_slow);
        nmlp_json_put_bool(w, "truncate", rope->truncate);
    }
    if (kind == NMLP_ROPE_LONGROPE) {
        put_factors(w, "short_factor", rope->short_factor, rope->n_factors);
        put_factors(w, "long_factor", rope->long_factor, rope->n_factors);
    }
    if (kind == NMLP_ROPE_YARN || kind == NMLP_ROPE_LONGROPE)
        nmlp_json_put_number(w, "attention_factor", rope->attention_factor);
    if (kind >= NMLP_ROPE_YARN)
        nmlp_json_put_number(w, "original_max_position_embeddings", rope->original_max_positions);
    if (rope->query_growth != 0) nmlp_json_put_number(w, "llama_4_scaling_beta", rope->query_growth);
    nmlp_json_end_object(w);
}

void nmlp_config_write_rope(const nmlp_config *c, nmlp_json_writer *w) {
    if (c->features->local_theta > 0) {
        nmlp_json_begin_object(w, "rope_parameters");
        put_one(&c->rope, true, "full_attention", w);
        put_one(&c->local_rope, true, "sliding_attention", w);
        nmlp_json_end_object(w);
        return;
    }
    nmlp_json_put_number(w, "rope_theta", c->rope.theta);
    if (c->rope_dim != c->head_dim)
        nmlp_json_put_number(w, "partial_rotary_factor", (double)c->rope_dim / (double)c->head_dim);
    if (c->features->partial_rope && c->rope.kind == NMLP_ROPE_LONGROPE)
        nmlp_json_put_number(w, "original_max_position_embeddings", c->rope.original_max_positions);
    if (c->rope.kind == NMLP_ROPE_DEFAULT && c->rope.query_growth == 0)
        nmlp_json_put_null(w, "rope_scaling");
    else
        put_one(&c->rope, false, "rope_scaling", w);
}
