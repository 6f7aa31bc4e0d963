/* libneuronmlp: load a Hugging Face checkpoint, dense or compressed, and generate text.
 *
 *     nmlp_llm *llm;
 *     nmlp_err err;
 *     if (nmlp_llm_open(&llm, "models/tiny", NULL, &err) != NMLP_OK) { puts(err.message); return 1; }
 *     nmlp_llm_generate(llm, "The old house", NULL, print_piece, NULL, &err);
 *     nmlp_llm_close(llm);
 *
 * An nmlp_llm belongs to one thread at a time; it uses threads of its own inside. */
#ifndef NEURONMLP_NEURONMLP_H
#define NEURONMLP_NEURONMLP_H

#include <stddef.h>
#include <stdint.h>

#include "neuronmlp/status.h"

#if defined(__GNUC__)
#define NMLP_API __attribute__((visibility("default")))
#else
#define NMLP_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0" */
NMLP_API const char *nmlp_version(void);

typedef struct nmlp_llm nmlp_llm;

typedef struct nmlp_llm_options {
    int n_threads;   /* 0: one per CPU */
    const char *isa; /* kernel set: "ref", "avx2", …; NULL: the fastest exact one */
    int64_t context; /* positions; 0: the model's maximum, at most 4096 */
} nmlp_llm_options;

/* `dir` holds config.json, *.safetensors and tokenizer.json. `options` may be NULL. */
NMLP_API nmlp_status nmlp_llm_open(nmlp_llm **out, const char *dir, const nmlp_llm_options *options, nmlp_err *err);
NMLP_API void nmlp_llm_close(nmlp_llm *llm); /* NULL is fine */

typedef struct nmlp_llm_request {
    int64_t max_new;    /* 0: 128 */
    double temperature; /* 0: greedy */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 0 or 1: all */
    double min_p;       /* 0: all */
    uint64_t seed;
} nmlp_llm_request;

/* A piece of generated text: whole UTF-8 characters, not NUL-ended. Return 0 to go on. */
typedef int nmlp_llm_on_text(void *ctx, const char *text, size_t len);

/* Continues `prompt`. Every call starts a new text. `request` may be NULL. */
NMLP_API nmlp_status nmlp_llm_generate(nmlp_llm *llm, const char *prompt, const nmlp_llm_request *request,
                                       nmlp_llm_on_text *on_text, void *ctx, nmlp_err *err);

#ifdef __cplusplus
}
#endif

#endif
