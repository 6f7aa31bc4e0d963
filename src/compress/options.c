/* Options of a compression: defaults, what a model's size asks for, and what does not go together. */
#include "compress/job_internal.h"

static const nmlp_compress_effort thorough = {2, 8192, 4096, 1}, quick = {0, 2048, 1024, 4};

static double mlp_params(const nmlp_config *c) {
    double params = 0;
    for (int64_t l = 0; l < c->n_layers; l++)
        params += 3.0 * (double)c->hidden * (double)nmlp_config_mlp_inner(c, l) * (double)nmlp_config_mlp_count(c, l);
    return params;
}

bool nmlp_compress_is_large(const nmlp_config *c) {
    const double large_params = 200e6; /* of all MLPs */
    return mlp_params(c) >= large_params;
}

const nmlp_compress_effort *nmlp_compress_effort_of(const nmlp_config *c) {
    return nmlp_compress_is_large(c) ? &quick : &thorough;
}

nmlp_compress_options nmlp_compress_defaults(void) {
    return (nmlp_compress_options){.tile = 32,
                                   .slices = 1,
                                   .adaptive = true,
                                   .refit = true,
                                   .whiten = true,
                                   .row_weights = true,
                                   .shrink = true,
                                   .cap = 0.01,
                                   .joint = NMLP_JOINT_AUTO,
                                   .rounds = -1,
                                   .calib_tokens = 65536,
                                   .heldout_tokens = -1,
                                   .context = 512,
                                   .calib_name = ""};
}

int64_t nmlp_compress_cpu_tile(const nmlp_config *config) {
    enum { SMALL_HIDDEN = 512 };
    return config->hidden <= SMALL_HIDDEN ? 16 : 32;
}

/* Sums and products of counts within these bounds fit 64 bits. */
static nmlp_status check_counts(const nmlp_compress_options *o, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_check_count("tile", o->tile, 1, 1 << 24, err));
    NMLP_RETURN_IF_FAILED(nmlp_check_count("context", o->context, 2, INT64_C(1) << 31, err));
    NMLP_RETURN_IF_FAILED(nmlp_check_count("calibration_tokens", o->calib_tokens, 1, INT64_C(1) << 40, err));
    NMLP_RETURN_IF_FAILED(nmlp_check_count("heldout_tokens", o->heldout_tokens, 0, INT64_C(1) << 40, err));
    NMLP_RETURN_IF_FAILED(nmlp_check_count("rounds", o->rounds, 0, 8, err));
    if (o->cap >= 0 && o->cap <= 1) return NMLP_OK;
    return nmlp_fail_field(err, NMLP_E_ARG, "cap", "is %g; it must be from 0 (none) to 1", o->cap);
}

static nmlp_status check_slices(const nmlp_model *m, const nmlp_compress_options *o, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_check_count("slices", o->slices, 1, NMLP_SLICES_MAX, err));
    if (o->slices == 1) return NMLP_OK;
    if (m->config.intermediate % o->slices != 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "slices",
                               "is %lld, which does not divide the intermediate size of %lld", (long long)o->slices,
                               (long long)m->config.intermediate);
    if (o->budget_ms > 0 || o->ranks)
        return nmlp_fail_field(err, NMLP_E_ARG, "slices",
                               "go with a `ratio`: other budgets do not know what a rank of each slice costs");
    if (m->config.n_experts > 0)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: slices of experts are not known", m->checkpoint.dir);
    if (m->config.features->fused)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: slices of fused projections are not known", m->checkpoint.dir);
    return NMLP_OK;
}

static nmlp_status check_modules(const nmlp_model *m, const nmlp_compress_options *o, nmlp_err *err) {
    if (!o->attention) return NMLP_OK;
    if (o->budget_ms > 0 || o->ranks || o->slices > 1)
        return nmlp_fail_field(err, NMLP_E_ARG, "modules",
                               "with attention go with a `ratio` and without slices: other budgets are of MLPs");
    if (nmlp_group_size(o->group) > 1)
        return nmlp_fail_field(err, NMLP_E_UNSUPPORTED, "modules",
                               "with attention are compressed by one process, %d were started",
                               nmlp_group_size(o->group));
    if (m->config.features->fused)
        return nmlp_fail_field(err, NMLP_E_UNSUPPORTED, "modules",
                               "cannot have attention: this %s model has q, k and v in one tensor", m->config.family);
    return NMLP_OK;
}

nmlp_status nmlp_compress_options_check(const nmlp_model *m, const nmlp_compress_options *o, nmlp_err *err) {
    if (!o->ranks && o->budget_ms <= 0 && !(o->ratio > 0 && o->ratio < 1)) {
        nmlp_fail_field(err, NMLP_E_ARG, "ratio", "is %g; it must be above 0 and below 1", o->ratio);
        nmlp_fail_hint(err, "it is the fraction of parameters to remove; 0.2 keeps 80 %%");
        return NMLP_E_ARG;
    }
    NMLP_RETURN_IF_FAILED(check_counts(o, err));
    if (m->config.compressed)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: is compressed already; compress the dense checkpoint, or expand this one first",
                         m->checkpoint.dir);
    if (m->config.quantised) {
        nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: has quantised weights, which are not compressed further",
                  m->checkpoint.dir);
        nmlp_fail_hint(err, "compress the checkpoint that it was made from, then quantise; or expand this one first");
        return NMLP_E_UNSUPPORTED;
    }
    NMLP_RETURN_IF_FAILED(check_slices(m, o, err));
    if (m->config.n_experts > 0 && nmlp_group_size(o->group) > 1)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: models with experts are compressed by one process, %d were started", m->checkpoint.dir,
                         nmlp_group_size(o->group));
    NMLP_RETURN_IF_FAILED(check_modules(m, o, err));
    if (o->budget_ms > 0 && m->config.n_experts > 0)
        return nmlp_fail_field(err, NMLP_E_UNSUPPORTED, "budget_ms",
                               "is for models without experts; this %s model takes a `ratio`", m->config.family);
    if (o->budget_ms > 0 && !o->adaptive)
        return nmlp_fail_field(err, NMLP_E_ARG, "budget_ms",
                               "needs adaptive ranks (`allocation`): uniform ranks know no time");
    return NMLP_OK;
}
