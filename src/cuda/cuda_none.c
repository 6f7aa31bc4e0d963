/* Stands in for the GPU backend in builds without CUDA. */
#include "cuda/cuda.h"

#include <stdio.h>

static nmlp_status refuse(nmlp_err *err) {
    nmlp_fail(err, NMLP_E_UNSUPPORTED, "this program was built without CUDA");
    nmlp_fail_hint(err, "use the device cpu, or build where nvcc is found (cmake -DNMLP_CUDA=ON)");
    return NMLP_E_UNSUPPORTED;
}

nmlp_status nmlp_cuda_probe(nmlp_cuda_info *info, nmlp_err *err) {
    *info = (nmlp_cuda_info){0};
    return refuse(err);
}

nmlp_status nmlp_cuda_mlp_create(nmlp_cuda_mlp **out, const nmlp_factors matrices[NMLP_MLP_MATRICES], int64_t s,
                                 nmlp_cuda_path path, nmlp_err *err) {
    (void)matrices;
    (void)s;
    (void)path;
    *out = NULL;
    return refuse(err);
}

void nmlp_cuda_mlp_destroy(nmlp_cuda_mlp *mlp) { (void)mlp; }

nmlp_status nmlp_cuda_mlp_run(nmlp_cuda_mlp *mlp, float *y, const float *x, nmlp_err *err) {
    (void)mlp;
    (void)y;
    (void)x;
    return refuse(err);
}

size_t nmlp_cuda_mlp_weight_bytes(const nmlp_cuda_mlp *mlp) {
    (void)mlp;
    return 0;
}

void nmlp_cuda_mlp_describe(const nmlp_cuda_mlp *mlp, char *text, size_t text_bytes) {
    (void)mlp;
    snprintf(text, text_bytes, "built without CUDA");
}

nmlp_status nmlp_cuda_mlp_time(nmlp_cuda_mlp *const *mlps, int n, int n_timed, double *median_us, nmlp_err *err) {
    (void)mlps;
    (void)n;
    (void)n_timed;
    *median_us = 0;
    return refuse(err);
}

nmlp_status nmlp_cuda_copy_rate(double *bytes_per_second, nmlp_err *err) {
    *bytes_per_second = 0;
    return refuse(err);
}

nmlp_status nmlp_cuda_matmul_rate(double *flop_per_second, nmlp_err *err) {
    *flop_per_second = 0;
    return refuse(err);
}

nmlp_status nmlp_cuda_engine_create(nmlp_cuda_engine **out, const nmlp_model *model, const nmlp_progress *progress,
                                    nmlp_err *err) {
    (void)model;
    (void)progress;
    *out = NULL;
    return refuse(err);
}

void nmlp_cuda_engine_destroy(nmlp_cuda_engine *engine) { (void)engine; }

const char *nmlp_cuda_engine_name(const nmlp_cuda_engine *engine) {
    (void)engine;
    return "none";
}

size_t nmlp_cuda_engine_step_bytes(const nmlp_cuda_engine *engine) {
    (void)engine;
    return 0;
}

nmlp_status nmlp_cuda_session_create(nmlp_cuda_session **out, const nmlp_cuda_engine *engine, int64_t context,
                                     const float *rope, nmlp_err *err) {
    (void)engine;
    (void)context;
    (void)rope;
    *out = NULL;
    return refuse(err);
}

void nmlp_cuda_session_destroy(nmlp_cuda_session *session) { (void)session; }

int64_t nmlp_cuda_session_length(const nmlp_cuda_session *session) {
    (void)session;
    return 0;
}

void nmlp_cuda_session_truncate(nmlp_cuda_session *session, int64_t length) {
    (void)session;
    (void)length;
}

void nmlp_cuda_session_set_sampling(nmlp_cuda_session *session, double temperature, uint64_t seed) {
    (void)session;
    (void)temperature;
    (void)seed;
}

nmlp_status nmlp_cuda_session_append(nmlp_cuda_session *session, const int32_t *ids, int64_t n, nmlp_err *err) {
    (void)session;
    (void)ids;
    (void)n;
    return refuse(err);
}

nmlp_status nmlp_cuda_session_last_logits(nmlp_cuda_session *session, float *logits, nmlp_err *err) {
    (void)session;
    (void)logits;
    return refuse(err);
}

nmlp_status nmlp_cuda_session_next(nmlp_cuda_session *session, int64_t more, int32_t *id, nmlp_err *err) {
    (void)session;
    (void)more;
    *id = -1;
    return refuse(err);
}

nmlp_status nmlp_cuda_scorer_create(nmlp_cuda_scorer **out, const nmlp_cuda_engine *engine, int64_t positions,
                                    const float *rope, nmlp_err *err) {
    (void)engine;
    (void)positions;
    (void)rope;
    *out = NULL;
    return refuse(err);
}

void nmlp_cuda_scorer_destroy(nmlp_cuda_scorer *scorer) { (void)scorer; }

int64_t nmlp_cuda_scorer_tokens(const nmlp_cuda_scorer *scorer) {
    (void)scorer;
    return 0;
}

nmlp_status nmlp_cuda_scorer_run(nmlp_cuda_scorer *scorer, const nmlp_cuda_text *texts, int64_t n, nmlp_err *err) {
    (void)scorer;
    (void)texts;
    (void)n;
    return refuse(err);
}

nmlp_status nmlp_cuda_batch_create(nmlp_cuda_batch **out, const nmlp_cuda_engine *engine,
                                   const nmlp_cuda_batch_options *options, nmlp_err *err) {
    (void)engine;
    (void)options;
    *out = NULL;
    return refuse(err);
}

void nmlp_cuda_batch_destroy(nmlp_cuda_batch *batch) { (void)batch; }

void nmlp_cuda_batch_set_pages(nmlp_cuda_batch *batch, int32_t sequence, const int32_t *pages, int64_t n) {
    (void)batch;
    (void)sequence;
    (void)pages;
    (void)n;
}

void nmlp_cuda_batch_set_length(nmlp_cuda_batch *batch, int32_t sequence, int64_t length) {
    (void)batch;
    (void)sequence;
    (void)length;
}

nmlp_status nmlp_cuda_batch_copy_page(nmlp_cuda_batch *batch, int32_t to, int32_t from, nmlp_err *err) {
    (void)batch;
    (void)to;
    (void)from;
    return refuse(err);
}

nmlp_status nmlp_cuda_batch_step(nmlp_cuda_batch *batch, const nmlp_cuda_batch_item *items, int64_t n_items,
                                 nmlp_err *err) {
    (void)batch;
    (void)items;
    (void)n_items;
    return refuse(err);
}

int64_t nmlp_cuda_batch_steps_ahead(const nmlp_cuda_batch *batch) {
    (void)batch;
    return 0;
}

nmlp_status nmlp_cuda_batch_choose(nmlp_cuda_batch *batch, nmlp_cuda_batch_choice *items, int64_t n_items, int64_t more,
                                   nmlp_err *err) {
    (void)batch;
    (void)items;
    (void)n_items;
    (void)more;
    return refuse(err);
}
