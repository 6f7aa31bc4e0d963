/* Text to token ids and back, as Hugging Face's `tokenizers` does it.
 *
 * A folder holds tokenizer.json; or else tokenizer.model, which is a sentencepiece model or a tiktoken file; tokens
 * that stand only in tokenizer_config.json or added_tokens.json come on top. Supported parts of tokenizer.json: models
 * BPE (byte-level, or of characters with byte_fallback) and Unigram; normalizers NFC, NFD, NFKC, NFKD, Lowercase,
 * Strip, Replace, Prepend, Precompiled; pre-tokenizers ByteLevel, Split, Digits, Metaspace; post-processors ByteLevel,
 * TemplateProcessing, BertProcessing, RobertaProcessing; decoders ByteLevel, Metaspace, Replace, ByteFallback, Fuse,
 * Strip; Sequence of any. Anything else is refused with NMLP_E_UNSUPPORTED, by name. `truncation` and `padding` are
 * settings of a training loop and are ignored.
 *
 * A tokenizer is immutable after loading and may be used by many threads at once. */
#ifndef NMLP_TEXT_TOKENIZER_H
#define NMLP_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

typedef struct nmlp_tokenizer nmlp_tokenizer;

/* A folder as above, or tokenizer.json or tokenizer.model itself. Destroy with nmlp_tokenizer_destroy. */
nmlp_status nmlp_tokenizer_load(nmlp_tokenizer **out, const char *dir_or_file, nmlp_err *err);
/* The file of a folder that holds its tokenizer: tokenizer.json, or else tokenizer.model. */
nmlp_status nmlp_tokenizer_path(char *out, size_t out_bytes, const char *dir, nmlp_err *err);
/* tokenizer.json from memory; `origin` names the text in errors. */
nmlp_status nmlp_tokenizer_parse(nmlp_tokenizer **out, const char *json, size_t len, const char *origin, nmlp_err *err);
/* The same for the content of a tokenizer.model. */
nmlp_status nmlp_tokenizer_parse_model(nmlp_tokenizer **out, const char *data, size_t len, const char *origin,
                                       nmlp_err *err);
void nmlp_tokenizer_destroy(nmlp_tokenizer *t); /* NULL is fine */

int64_t nmlp_tokenizer_vocab_size(const nmlp_tokenizer *t); /* highest id + 1; ids below may be unused */
/* Id of a vocabulary entry (spelled as in the file, "Ġthe") or added token; -1 if none. */
int64_t nmlp_tokenizer_find(const nmlp_tokenizer *t, const char *piece);
/* The begin-of-text token: what the template puts in front, else what tokenizer_config.json names; -1 for none. */
int64_t nmlp_tokenizer_bos_id(const nmlp_tokenizer *t);
/* The end-of-text token that the folder names; -1 for none. */
int64_t nmlp_tokenizer_eos_id(const nmlp_tokenizer *t);
/* What an id adds to a text that is decoded without special tokens: `len` bytes, not NUL-ended and not always whole
 * characters. NULL: nothing. The first token of a text may lose its first space, see nmlp_tokenizer_strips_space. */
const char *nmlp_tokenizer_bytes(const nmlp_tokenizer *t, int64_t id, size_t *len);
/* The text of a special token, not NUL-ended; NULL for other tokens. */
const char *nmlp_tokenizer_special_text(const nmlp_tokenizer *t, int64_t id, size_t *len);
bool nmlp_tokenizer_strips_space(const nmlp_tokenizer *t);
/* Whether a text is its tokens put together; otherwise decoding puts spaces between them. */
bool nmlp_tokenizer_joins_plainly(const nmlp_tokenizer *t);
bool nmlp_tokenizer_is_special(const nmlp_tokenizer *t, int64_t id); /* false for ids that do not exist */

/* A growing list of ids; the caller's memory. */
typedef struct nmlp_ids {
    int32_t *data;
    size_t len, capacity;
} nmlp_ids;

void nmlp_ids_init(nmlp_ids *ids);
void nmlp_ids_fini(nmlp_ids *ids);
nmlp_status nmlp_ids_push(nmlp_ids *ids, int32_t id, nmlp_err *err);

/* What stands around the text besides itself. */
typedef enum nmlp_bos {
    NMLP_BOS_NONE,
    NMLP_BOS_TEMPLATE, /* what the model's template puts in front and behind; nothing where it has none */
    NMLP_BOS_ALWAYS    /* the begin-of-text token in front, also where the template has none; NMLP_E_ARG without one */
} nmlp_bos;

/* Appends the ids of `text` to `out`; after a failure `out` is as before.
 * parse_special: special added tokens spelled in the text become their ids; otherwise they are text. Other added tokens
 * are always recognised. Malformed UTF-8 counts as U+FFFD, one for each maximal malformed part. */
nmlp_status nmlp_tokenizer_encode(const nmlp_tokenizer *t, const char *text, size_t len, nmlp_bos bos,
                                  bool parse_special, nmlp_ids *out, nmlp_err *err);

/* text[begin..end) */
typedef struct nmlp_text_span {
    size_t begin, end;
} nmlp_text_span;

/* The same for valid UTF-8 in which parts come from a user: special tokens are recognised, but none that a user's part
 * has a byte of. `spans` are sorted and do not overlap. */
nmlp_status nmlp_tokenizer_encode_spans(const nmlp_tokenizer *t, const char *text, size_t len,
                                        const nmlp_text_span *spans, size_t n_spans, nmlp_ids *out, nmlp_err *err);

/* Appends the ids of a whole file, without special tokens, by the tokenizer of a folder. */
nmlp_status nmlp_tokenizer_encode_file(const char *model_dir, const char *path, nmlp_ids *ids, nmlp_err *err);

/* Appends the text of n ids; always valid UTF-8 (bytes that form no character become U+FFFD; in vocabularies with
 * byte_fallback every byte of a run of byte tokens does when the run is malformed). An unused id below the
 * vocabulary size stands for nothing; an id outside it is NMLP_E_ARG. */
nmlp_status nmlp_tokenizer_decode(const nmlp_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                                  nmlp_str *out, nmlp_err *err);

/* Decoding one id at a time: what a push appends is whole characters; the start of a character waits for its rest. The
 * same text as nmlp_tokenizer_decode gives, but where a run of byte tokens becomes malformed after whole characters. */
typedef struct nmlp_decode_stream {
    const nmlp_tokenizer *tokenizer; /* borrowed */
    bool skip_special;
    bool started;      /* a token was decoded */
    size_t strip_left; /* characters that may still be stripped from the start of the text */
    unsigned char pending[4];
    size_t n_pending;
} nmlp_decode_stream;

void nmlp_decode_stream_init(nmlp_decode_stream *stream, const nmlp_tokenizer *t, bool skip_special);
void nmlp_decode_stream_fini(nmlp_decode_stream *stream);
nmlp_status nmlp_decode_stream_push(nmlp_decode_stream *stream, int32_t id, nmlp_str *out, nmlp_err *err);
/* End of text: a character that never got complete becomes U+FFFD. The stream can be used again. */
nmlp_status nmlp_decode_stream_flush(nmlp_decode_stream *stream, nmlp_str *out, nmlp_err *err);

/* How a conversation is written down; known from the special tokens in the vocabulary. */
typedef enum nmlp_chat_format {
    NMLP_CHAT_NONE,   /* no chat tokens: a base model */
    NMLP_CHAT_LLAMA3, /* <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|> */
    NMLP_CHAT_CHATML  /* <|im_start|>ROLE\nCONTENT<|im_end|>\n */
} nmlp_chat_format;

typedef struct nmlp_chat_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
} nmlp_chat_message;

nmlp_chat_format nmlp_tokenizer_chat_format(const nmlp_tokenizer *t);
/* Appends the ids of a conversation and the header of the assistant's answer: by the model's own template
 * (text/chat_template.h) where its folder has one, else by its format, with BOS where that has one. Special tokens
 * spelled in role or content stay text. NMLP_E_UNSUPPORTED for a model with neither. */
nmlp_status nmlp_chat_encode(const nmlp_tokenizer *t, const nmlp_chat_message *messages, size_t n_messages,
                             nmlp_ids *out, nmlp_err *err);
bool nmlp_chat_is_known(const nmlp_tokenizer *t);  /* whether nmlp_chat_encode can do its work */
int64_t nmlp_chat_end_id(const nmlp_tokenizer *t); /* the token that ends an answer, or -1 */

#endif
