/* Load a Hugging Face checkpoint, dense or compressed, and generate text.
 *
 *     nmlp_llm *llm;
 *     nmlp_err err;
 *     if (nmlp_llm_open(&llm, "models/tiny", NULL, &err) != NMLP_OK) { puts(err.message); return 1; }
 *     nmlp_llm_generate(llm, "The old house", NULL, print_piece, NULL, &err);
 *     nmlp_llm_close(llm);
 *
 * An nmlp_llm belongs to one thread at a time; it uses threads of its own inside. */
#ifndef NEURONMLP_LLM_H
#define NEURONMLP_LLM_H

#include "neuronmlp/api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nmlp_llm nmlp_llm;

typedef struct nmlp_llm_options {
    size_t struct_bytes;
    int n_threads;   /* 0: one per CPU */
    const char *isa; /* kernel set: "ref", "avx2", "avx512", "amx"; NULL: the fastest exact one */
    int64_t context; /* positions; 0: the model's maximum, at most 4096 */
} nmlp_llm_options;

NMLP_API void nmlp_llm_options_init(nmlp_llm_options *options, size_t struct_bytes);

/* `dir` holds config.json, *.safetensors and tokenizer.json. `options` may be NULL. */
NMLP_API nmlp_status nmlp_llm_open(nmlp_llm **out, const char *dir, const nmlp_llm_options *options, nmlp_err *err);
NMLP_API void nmlp_llm_close(nmlp_llm *llm); /* NULL is fine */

typedef struct nmlp_llm_request {
    size_t struct_bytes;
    int64_t max_new;    /* tokens; 128 */
    double temperature; /* 0: greedy */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 1: all */
    double min_p;       /* 0: all */
    uint64_t seed;
} nmlp_llm_request;

NMLP_API void nmlp_llm_request_init(nmlp_llm_request *request, size_t struct_bytes);

/* A piece of generated text: whole UTF-8 characters, not NUL-ended. Return 0 to go on. */
typedef int nmlp_llm_on_text(void *ctx, const char *text, size_t len);

/* Continues `prompt`. Every call starts a new text. `request` may be NULL. */
NMLP_API nmlp_status nmlp_llm_generate(nmlp_llm *llm, const char *prompt, const nmlp_llm_request *request,
                                       nmlp_llm_on_text *on_text, void *ctx, nmlp_err *err);

#ifdef __cplusplus
}
#endif

#endif
