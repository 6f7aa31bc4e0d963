/* What a tokenizer is made of; for the files of src/text only. */
#ifndef NMLP_TEXT_TOKENIZER_INTERNAL_H
#define NMLP_TEXT_TOKENIZER_INTERNAL_H

#include "base/hashmap.h"
#include "base/json.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"

enum { NMLP_VOCAB_MAX = 1 << 21 }; /* the largest published vocabularies have 2^18 entries */

enum { NMLP_TOKEN_EXISTS = 1, NMLP_TOKEN_ADDED = 2, NMLP_TOKEN_SPECIAL = 4 };

/* One id: the bytes it stands for. Added tokens stand for their text as it is, vocabulary entries for the bytes that
 * their letters name; an entry with a letter outside the alphabet is taken literally and can come from the text of no
 * piece. */
typedef struct nmlp_token {
    uint32_t at, len; /* in tokenizer->bytes */
    uint32_t flags;
} nmlp_token;

struct nmlp_tokenizer {
    char *bytes; /* of all tokens, one after the other */
    size_t n_bytes;
    nmlp_token *tokens; /* [n_ids] */
    int64_t n_ids;
    nmlp_hashmap by_bytes; /* vocabulary entries by the bytes they stand for */
    nmlp_hashmap by_text;  /* added tokens and literal vocabulary entries by their text */
    int32_t byte_ids[256]; /* the id of each single byte, -1 where the vocabulary has none */
    bool ignore_merges;    /* a piece that is in the vocabulary is one token, whatever the merges say */
    bool nfc;              /* normalise first */
    nmlp_bpe bpe;
    nmlp_pretokenizer *pre;
    nmlp_added_tokens raw_added;        /* looked for in the text as it comes */
    nmlp_added_tokens normalized_added; /* looked for after normalisation */
    int32_t *prefix_ids;                /* what the template puts in front */
    size_t n_prefix_ids;
};

/* The steps of loading, in this order: added tokens are normalised, the template names tokens. */
nmlp_status nmlp_tokenizer_read_normalizer(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err);
/* Vocabulary, merges and added tokens. */
nmlp_status nmlp_tokenizer_read_vocab(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err);
/* Pre-tokenizer, post-processor, decoder. */
nmlp_status nmlp_tokenizer_read_parts(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err);

/* The "type" of a part, or NULL where there is none. */
const char *nmlp_tokenizer_part_type(const nmlp_json *part);
/* "ORIGIN: PART "TYPE" is not supported (supported: LIST)"; TYPE is said to be missing when NULL. */
nmlp_status nmlp_tokenizer_refuse(const nmlp_json_doc *doc, const char *part, const char *type, const char *supported,
                                  nmlp_err *err);

/* Id of a vocabulary entry by its spelling, -1 if none. */
int64_t nmlp_tokenizer_find_len(const nmlp_tokenizer *t, const char *piece, size_t len);

#endif
