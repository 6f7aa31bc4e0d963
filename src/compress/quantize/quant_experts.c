#include "compress/quantize/quant_experts.h"

#include "compress/calibrate/expert_sample.h"
#include "compress/calibrate/gram.h"

nmlp_status nmlp_quant_experts_make(nmlp_layer *out, const nmlp_layer *source, const nmlp_quant_routed *routed,
                                    const nmlp_quant_maker *layer_maker, nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(routed->engine)->config;
    int64_t h = c->hidden, inner = c->expert_intermediate;
    nmlp_expert_sampler sampler = {0};
    nmlp_quant_moments moments = {0};
    nmlp_quant_maker maker = *layer_maker;
    nmlp_arena arena;
    nmlp_status st = NMLP_OK;
    nmlp_arena_init(&arena);
    double *input = nmlp_arena_new(&arena, (size_t)(h * h), sizeof *input, err);
    double *act = nmlp_arena_new(&arena, (size_t)(inner * inner), sizeof *act, err);
    if (!input || !act) NMLP_TRY(NMLP_E_NOMEM);
    maker.moments = &moments;
    moments.second[NMLP_QUANT_MLP_INPUT] = input;
    moments.second[NMLP_QUANT_MLP_ACT] = act;
    NMLP_TRY(nmlp_expert_sampler_init(&sampler, routed->engine, routed->kernels, routed->n_rows, err));
    sampler.act_gram = act;
    NMLP_TRY(nmlp_expert_sampler_route(&sampler, routed->layer, routed->rows, err));
    for (int64_t e = 0; e < c->n_experts; e++) {
        const nmlp_mlp_sample *sample = &sampler.sample;
        NMLP_TRY(nmlp_expert_sampler_take(&sampler, e, err));
        NMLP_TRY(nmlp_gram_mean(routed->kernels, maker.pool, input, sample->x, sample->n, h, err));
        nmlp_gram_shrink(input, h, sample->n);
        nmlp_gram_shrink(act, inner, sample->n);
        moments.tokens = sample->n;
        NMLP_TRY(nmlp_quant_mlp_make(out->experts[e].mlp, source->experts[e].mlp, source->experts[e].shared_basis,
                                     &maker, err));
    }
out:
    nmlp_expert_sampler_fini(&sampler);
    nmlp_arena_fini(&arena);
    return st;
}
