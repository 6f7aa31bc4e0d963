/* What a tokenizer is made of; for the files of src/text only. */
#ifndef NMLP_TEXT_TOKENIZER_INTERNAL_H
#define NMLP_TEXT_TOKENIZER_INTERNAL_H

#include "base/hashmap.h"
#include "base/json.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/chat_template.h"
#include "text/normalize.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"
#include "text/unigram.h"

enum { NMLP_VOCAB_MAX = 1 << 21 }; /* the largest published vocabularies have 2^18 entries */

typedef enum nmlp_tokenizer_model {
    NMLP_TOKENIZER_BYTE_BPE, /* symbols are bytes; entries are written in the byte-level alphabet */
    NMLP_TOKENIZER_CHAR_BPE, /* symbols are characters; entries are written as they are */
    NMLP_TOKENIZER_UNIGRAM
} nmlp_tokenizer_model;

enum { NMLP_TOKEN_EXISTS = 1, NMLP_TOKEN_ADDED = 2, NMLP_TOKEN_SPECIAL = 4, NMLP_TOKEN_BYTE = 8 };

/* One id. Its text is what decoding gives: for added tokens their text as it is, for entries of a byte-level vocabulary
 * the bytes that their letters name (an entry with a letter outside the alphabet is taken literally and can come from
 * no text), for others the entry as the decoder writes it. */
typedef struct nmlp_token {
    const char *text;
    uint32_t len;
    uint32_t flags;
} nmlp_token;

/* What the decoder does, in this order. */
typedef struct nmlp_decode_rules {
    nmlp_normalizer *replace;  /* to every token, as do the next three; NULL: nothing */
    bool byte_fallback;        /* <0xE2> is a byte */
    uint32_t token_strip_char; /* taken off a token's start, at most so often */
    size_t token_strip_start;
    uint32_t strip_char; /* the same for the whole text */
    size_t strip_start;
    bool drop_first_metaspace; /* the first token loses its spaces */
    bool join_with_spaces;     /* no decoder: tokens are words */
} nmlp_decode_rules;

struct nmlp_tokenizer {
    nmlp_tokenizer_model model;
    char *keys; /* what the maps borrow */
    size_t keys_len, keys_capacity;
    nmlp_arena arena;   /* keys that came when `keys` was full */
    nmlp_token *tokens; /* [n_ids] */
    int64_t n_ids;
    size_t tokens_capacity;
    nmlp_hashmap vocab;    /* entries that the model can give: by bytes (BYTE_BPE) or as they are written */
    nmlp_hashmap others;   /* added tokens, and literal entries of a byte-level vocabulary, by their text */
    int32_t byte_ids[256]; /* the id of each single byte (BYTE_BPE) or of <0xHH>; -1 where the vocabulary has none */
    bool byte_fallback;    /* characters without an entry become bytes */
    bool fuse_unknown;     /* neighbouring unknown characters are one token */
    int32_t unknown_id;    /* -1: none */
    bool ignore_merges;    /* a piece that is in the vocabulary is one token, whatever the merges say */
    nmlp_bpe bpe;
    nmlp_unigram unigram;
    nmlp_normalizer *normalizer;
    nmlp_pretokenizer *pre;
    nmlp_decode_rules decode;
    nmlp_str decoded;                   /* texts of tokens that differ from their keys */
    nmlp_added_tokens raw_added;        /* looked for in the text as it comes */
    nmlp_added_tokens normalized_added; /* looked for after normalisation */
    nmlp_ids prefix, suffix;            /* what the template puts in front and behind */
    bool has_own_template;              /* from tokenizer.json, even where that puts nothing there */
    int64_t bos_id, eos_id;             /* tokens that the folder names as begin and end of text, or -1 */
    nmlp_chat_template *chat;           /* the model's own; NULL: none */
    char *chat_refusal;                 /* why it cannot be used; NULL: it can, or there is none */
};

/* tokenizer_vocab.c: filling the vocabulary, from whatever file. `origin` names it in errors. */
nmlp_status nmlp_tokenizer_reserve(nmlp_tokenizer *t, int64_t n_ids, size_t n_entries, size_t key_bytes, nmlp_err *err);
nmlp_status nmlp_tokenizer_add_entry(nmlp_tokenizer *t, const char *origin, int64_t id, const char *text, size_t len,
                                     nmlp_err *err);
/* An entry that text never gives (control symbols of sentencepiece). */
nmlp_status nmlp_tokenizer_add_token(nmlp_tokenizer *t, const char *origin, const char *content, size_t len,
                                     bool normalized, const nmlp_added_token *token, nmlp_err *err);
/* model, and added_tokens, of tokenizer.json. */
nmlp_status nmlp_tokenizer_read_model(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err);
/* One member of added_tokens or added_tokens_decoder, which has its id as key. */
nmlp_status nmlp_tokenizer_read_added(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *added, int64_t id,
                                      nmlp_err *err);
/* Every pair of entries whose joined text is an entry, ranked by `order`: the entries from the first to be joined. */
nmlp_status nmlp_tokenizer_pair_entries(nmlp_tokenizer *t, const nmlp_token *order, const int32_t *order_ids, size_t n,
                                        nmlp_err *err);

/* tokenizer_parts.c: the other parts of tokenizer.json. The normalizer comes before the vocabulary, since added tokens
 * are normalised; the rest after it, since templates name tokens. */
nmlp_status nmlp_tokenizer_read_normalizer(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err);
bool nmlp_tokenizer_is_byte_level(const nmlp_json_doc *doc);
nmlp_status nmlp_tokenizer_read_pretokenizer(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err);
nmlp_status nmlp_tokenizer_read_post_processor(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err);

/* prepend_scheme of a Metaspace, or the older add_prefix_space. */
nmlp_status nmlp_tokenizer_read_prepend(const nmlp_json_doc *doc, const nmlp_json *part, nmlp_metaspace_prepend *out,
                                        nmlp_err *err);
/* Appends the bytes of base64, "=" at the end or not; false when it is none. */
bool nmlp_base64_append(nmlp_str *out, const char *text, size_t len);

/* tokenizer_decoder.c */
nmlp_status nmlp_tokenizer_read_decoder(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err);
/* Works out the text of every token once all are known. */
nmlp_status nmlp_tokenizer_decode_entries(nmlp_tokenizer *t, const char *origin, nmlp_err *err);

/* sentencepiece.c, tiktoken.c: other files than tokenizer.json. */
nmlp_status nmlp_tokenizer_read_sentencepiece(nmlp_tokenizer *t, const char *data, size_t len, const char *origin,
                                              nmlp_err *err);
bool nmlp_tiktoken_looks_like(const char *data, size_t len);
nmlp_status nmlp_tokenizer_read_tiktoken(nmlp_tokenizer *t, const char *data, size_t len, const char *origin,
                                         nmlp_err *err);

/* tokenizer_config.c: tokens and BOS that stand only in tokenizer_config.json and added_tokens.json. */
nmlp_status nmlp_tokenizer_read_folder(nmlp_tokenizer *t, const char *dir, nmlp_err *err);

/* The "type" of a part, or NULL where there is none. */
const char *nmlp_tokenizer_part_type(const nmlp_json *part);
bool nmlp_tokenizer_part_is(const nmlp_json *part, const char *type);
/* The members of a Sequence, under the name this kind of part uses. */
nmlp_status nmlp_tokenizer_need_list(const nmlp_json_doc *doc, const nmlp_json *part, const char *key,
                                     const nmlp_json **list, nmlp_err *err);
/* "ORIGIN: PART "TYPE" is not supported (supported: LIST)"; TYPE is said to be missing when NULL. */
nmlp_status nmlp_tokenizer_refuse(const nmlp_json_doc *doc, const char *part, const char *type, const char *supported,
                                  nmlp_err *err);

/* Id of a vocabulary entry by its spelling, -1 if none. */
int64_t nmlp_tokenizer_find_len(const nmlp_tokenizer *t, const char *piece, size_t len);

#endif
