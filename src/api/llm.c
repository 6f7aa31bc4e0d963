/* The public door: model, tokenizer, engine and session in one object. */
#include "neuronmlp/llm.h"

#include <string.h>

#include "api/options.h"
#include "base/mem.h"
#include "engine/generate.h"
#include "text/tokenizer.h"

enum { CONTEXT_MAX_DEFAULT = 4096, NEW_TOKENS_DEFAULT = 128 };

struct nmlp_llm {
    nmlp_pool *pool;
    nmlp_model model;
    nmlp_tokenizer *tokenizer;
    nmlp_engine *engine;
    nmlp_batch *batch;
    int32_t sequence;
};

static const nmlp_llm_options option_defaults = {.struct_bytes = sizeof option_defaults};
static const nmlp_llm_request request_defaults = {
    .struct_bytes = sizeof request_defaults, .max_new = NEW_TOKENS_DEFAULT, .top_p = 1};

const char *nmlp_version(void) { return NMLP_VERSION_STRING; }

void nmlp_llm_options_init(nmlp_llm_options *options, size_t struct_bytes) {
    nmlp_options_give(options, struct_bytes, &option_defaults, sizeof option_defaults);
}

void nmlp_llm_request_init(nmlp_llm_request *request, size_t struct_bytes) {
    nmlp_options_give(request, struct_bytes, &request_defaults, sizeof request_defaults);
}

static int64_t choose_context(const nmlp_llm_options *options, const nmlp_config *config) {
    if (options->context > 0) return options->context;
    return config->max_positions < CONTEXT_MAX_DEFAULT ? config->max_positions : CONTEXT_MAX_DEFAULT;
}

nmlp_status nmlp_llm_open(nmlp_llm **out, const char *dir, const nmlp_llm_options *options, nmlp_err *err) {
    nmlp_llm_options ours = option_defaults;
    nmlp_status st = NMLP_OK;
    if (!out || !dir) return nmlp_fail(err, NMLP_E_ARG, "nmlp_llm_open needs a place for the model and a directory");
    *out = NULL;
    NMLP_RETURN_IF_FAILED(nmlp_options_take(&ours, sizeof ours, options, "nmlp_llm_options", err));
    nmlp_llm *llm = nmlp_mem_new(1, sizeof *llm, err);
    if (!llm) return NMLP_E_NOMEM;
    NMLP_TRY(nmlp_pool_create(&llm->pool, ours.n_threads, err));
    NMLP_TRY(nmlp_model_open(&llm->model, dir, err));
    NMLP_TRY(nmlp_tokenizer_load(&llm->tokenizer, dir, err));
    nmlp_engine_options engine = {.isa = ours.isa, .pool = llm->pool};
    NMLP_TRY(nmlp_engine_create(&llm->engine, &llm->model, &engine, err));
    nmlp_batch_options batch = {.context = choose_context(&ours, &llm->model.config)};
    NMLP_TRY(nmlp_batch_create(&llm->batch, llm->engine, &batch, err));
    NMLP_TRY(nmlp_batch_open(llm->batch, NULL, 0, &llm->sequence, err));
    *out = llm;
out:
    if (st != NMLP_OK) nmlp_llm_close(llm);
    return st;
}

void nmlp_llm_close(nmlp_llm *llm) {
    if (!llm) return;
    nmlp_batch_destroy(llm->batch);
    nmlp_engine_destroy(llm->engine);
    nmlp_tokenizer_destroy(llm->tokenizer);
    nmlp_model_close(&llm->model);
    nmlp_pool_destroy(llm->pool);
    nmlp_mem_free(llm);
}

struct stream {
    nmlp_llm *llm;
    nmlp_decode_stream decoder;
    nmlp_str text;
    nmlp_llm_on_text *on_text;
    void *ctx;
    nmlp_status st;
    nmlp_err *err;
};

static bool hand_over(struct stream *s) {
    bool go_on = true;
    if (s->text.len && s->on_text) go_on = s->on_text(s->ctx, s->text.data, s->text.len) == 0;
    nmlp_str_clear(&s->text);
    return go_on;
}

static bool on_token(void *ctx, int32_t id) {
    struct stream *s = ctx;
    if (id >= nmlp_tokenizer_vocab_size(s->llm->tokenizer)) return true; /* padding of the vocabulary has no text */
    s->st = nmlp_decode_stream_push(&s->decoder, id, &s->text, s->err);
    return s->st == NMLP_OK && hand_over(s);
}

static nmlp_generation make_request(const nmlp_llm *llm, const nmlp_llm_request *r, const nmlp_ids *prompt) {
    const nmlp_config *c = &llm->model.config;
    nmlp_generation g = {.prompt = prompt->data,
                         .n_prompt = (int64_t)prompt->len,
                         .max_new = r->max_new,
                         .sampling = nmlp_sampling_greedy(),
                         .stop_ids = c->stop_ids,
                         .n_stop_ids = c->n_stop_ids,
                         .on_token = on_token};
    g.sampling.temperature = r->temperature;
    g.sampling.top_k = r->top_k;
    g.sampling.top_p = r->top_p;
    g.sampling.min_p = r->min_p;
    g.sampling.seed = r->seed;
    return g;
}

nmlp_status nmlp_llm_generate(nmlp_llm *llm, const char *prompt, const nmlp_llm_request *request,
                              nmlp_llm_on_text *on_text, void *ctx, nmlp_err *err) {
    nmlp_llm_request ours = request_defaults;
    nmlp_generation_stats stats;
    nmlp_ids ids;
    nmlp_status st = NMLP_OK;
    if (!llm || !prompt) return nmlp_fail(err, NMLP_E_ARG, "nmlp_llm_generate needs a model and a prompt");
    NMLP_RETURN_IF_FAILED(nmlp_options_take(&ours, sizeof ours, request, "nmlp_llm_request", err));
    struct stream stream = {.llm = llm, .on_text = on_text, .ctx = ctx, .err = err};
    nmlp_ids_init(&ids);
    nmlp_str_init(&stream.text);
    nmlp_decode_stream_init(&stream.decoder, llm->tokenizer, true);
    nmlp_batch_truncate(llm->batch, llm->sequence, 0);
    NMLP_TRY(nmlp_tokenizer_encode(llm->tokenizer, prompt, strlen(prompt), true, false, &ids, err));
    nmlp_generation generation = make_request(llm, &ours, &ids);
    generation.ctx = &stream;
    NMLP_TRY(nmlp_generate(llm->batch, llm->sequence, &generation, &stats, err));
    NMLP_TRY(stream.st);
    NMLP_TRY(nmlp_decode_stream_flush(&stream.decoder, &stream.text, err));
    (void)hand_over(&stream);
out:
    nmlp_decode_stream_fini(&stream.decoder);
    nmlp_str_fini(&stream.text);
    nmlp_ids_fini(&ids);
    return st;
}
