/* Tokenizers of GGUF files and of model directories. Byte-level BPE ("gpt2") is tokenizer.json, sentencepiece ("llama")
 * is tokenizer.model; bos, eos and the chat template are tokenizer_config.json. */
#ifndef NMLP_GGUF_GGUF_TOKENIZER_H
#define NMLP_GGUF_GGUF_TOKENIZER_H

#include "checkpoint/config.h"
#include "gguf/gguf.h"
#include "gguf/gguf_write.h"

/* Writes the tokenizer's files into `dir`; nothing for a file without one. */
nmlp_status nmlp_gguf_tokenizer_save(nmlp_gguf *file, const char *dir, nmlp_err *err);

/* Adds the metadata of the tokenizer in `dir`, of as many tokens as the model has; "none" where there is no file. */
nmlp_status nmlp_gguf_tokenizer_add(nmlp_gguf_metadata *metadata, const char *dir, const nmlp_config *config,
                                    nmlp_err *err);

/* How text is cut before merges, by the file's name for it. */
typedef struct nmlp_gguf_split {
    const char *name;
    const char *regex; /* NULL: the byte-level pre-tokenizer's own */
    bool ignore_merges;
} nmlp_gguf_split;

/* The i-th that is known, NULL past the end; the first of those with the same expression is the one written. */
const nmlp_gguf_split *nmlp_gguf_split_at(size_t i);

#endif
