/* tokenizer.model of sentencepiece: a protobuf message, read by hand. Lengths are checked before they are used; fields
 * that are not needed are passed over. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_internal.h"
#include "text/utf8.h"

typedef struct proto {
    const unsigned char *at, *end;
    bool bad;
} proto;

typedef enum wire_type { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 } wire_type;

typedef struct proto_field {
    uint32_t number;
    uint64_t value; /* VARINT, and the bits of WIRE_32 */
    proto bytes;    /* WIRE_BYTES */
    wire_type type;
} proto_field;

static uint64_t read_varint(proto *p) {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && p->at < p->end; shift += 7) {
        unsigned char byte = *p->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80)) return value;
    }
    p->bad = true;
    return 0;
}

static const unsigned char *take(proto *p, uint64_t n) {
    if (n > (uint64_t)(p->end - p->at)) {
        p->bad = true;
        return NULL;
    }
    p->at += n;
    return p->at - n;
}

/* False at the end, and when the message is malformed. */
static bool next_field(proto *p, proto_field *field) {
    if (p->bad || p->at == p->end) return false;
    uint64_t tag = read_varint(p);
    const unsigned char *bytes;
    uint64_t n;
    *field = (proto_field){.number = (uint32_t)(tag >> 3), .type = (wire_type)(tag & 7)};
    switch (field->type) {
    case WIRE_VARINT: field->value = read_varint(p); break;
    case WIRE_64: take(p, 8); break;
    case WIRE_BYTES:
        n = read_varint(p);
        bytes = p->bad ? NULL : take(p, n);
        if (bytes) field->bytes = (proto){.at = bytes, .end = bytes + n};
        break;
    case WIRE_32:
        bytes = take(p, 4);
        for (int i = 0; bytes && i < 4; i++) field->value |= (uint64_t)bytes[i] << (8 * i);
        break;
    default: p->bad = true;
    }
    return !p->bad;
}

static float float_of(uint64_t bits) {
    uint32_t word = (uint32_t)bits;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

typedef enum piece_type { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE } piece_type;
typedef enum spm_type { SPM_UNIGRAM = 1, SPM_BPE = 2 } spm_type;

typedef struct piece {
    const char *text;
    size_t len;
    float score;
    piece_type type;
} piece;

typedef struct spm {
    piece *pieces;
    size_t n_pieces, capacity;
    uint64_t model_type;
    bool byte_fallback, space_as_suffix;
    uint64_t bos_id;
    nmlp_normalizer_spec normalizer;
} spm;

static bool read_piece(proto message, piece *out) {
    proto_field f;
    *out = (piece){.type = NORMAL};
    while (next_field(&message, &f)) {
        if (f.number == 1 && f.type == WIRE_BYTES) {
            out->text = (const char *)f.bytes.at;
            out->len = (size_t)(f.bytes.end - f.bytes.at);
        } else if (f.number == 2 && f.type == WIRE_32) {
            out->score = float_of(f.value);
        } else if (f.number == 3 && f.type == WIRE_VARINT) {
            out->type = (piece_type)f.value;
        }
    }
    return !message.bad && out->text;
}

static bool read_trainer(proto message, spm *out) {
    proto_field f;
    while (next_field(&message, &f)) {
        if (f.type != WIRE_VARINT) continue;
        if (f.number == 3) out->model_type = f.value;
        if (f.number == 24) out->space_as_suffix = f.value;
        if (f.number == 35) out->byte_fallback = f.value;
        if (f.number == 41) out->bos_id = f.value;
    }
    return !message.bad;
}

static bool read_normalizer_spec(proto message, nmlp_normalizer_spec *out) {
    proto_field f;
    while (next_field(&message, &f)) {
        if (f.number == 2 && f.type == WIRE_BYTES) {
            out->charsmap = f.bytes.at;
            out->charsmap_len = (size_t)(f.bytes.end - f.bytes.at);
        }
        if (f.type != WIRE_VARINT) continue;
        if (f.number == 3) out->add_prefix = f.value;
        if (f.number == 4) out->remove_extra_space = f.value;
        if (f.number == 5) out->escape_space = f.value;
    }
    return !message.bad;
}

static nmlp_status push_piece(spm *out, proto message, const char *origin, nmlp_err *err) {
    enum { PIECE_MAX_BYTES = 4096 };
    void *pieces = out->pieces;
    if (out->n_pieces == NMLP_VOCAB_MAX)
        return nmlp_fail(err, NMLP_E_LIMIT, "%s: more than %d pieces", origin, NMLP_VOCAB_MAX);
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&pieces, &out->capacity, out->n_pieces + 1, sizeof *out->pieces, err));
    out->pieces = pieces;
    piece *p = &out->pieces[out->n_pieces];
    if (!read_piece(message, p) || p->len > PIECE_MAX_BYTES || nmlp_utf8_valid_prefix(p->text, p->len) != p->len ||
        p->score != p->score)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: sentencepiece piece %zu is malformed", origin, out->n_pieces);
    if (p->type < NORMAL || p->type > BYTE || p->type == UNUSED)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: sentencepiece piece %zu has type %d, which is not supported",
                         origin, out->n_pieces, (int)p->type);
    out->n_pieces++;
    return NMLP_OK;
}

static nmlp_status read_model(spm *out, const char *data, size_t len, const char *origin, nmlp_err *err) {
    proto message = {.at = (const unsigned char *)data, .end = (const unsigned char *)data + len};
    proto_field f;
    bool good = true;
    while (good && next_field(&message, &f)) {
        if (f.type != WIRE_BYTES) continue;
        if (f.number == 1) NMLP_RETURN_IF_FAILED(push_piece(out, f.bytes, origin, err));
        if (f.number == 2) good = read_trainer(f.bytes, out);
        if (f.number == 3) good = read_normalizer_spec(f.bytes, &out->normalizer);
    }
    if (!good || message.bad || !out->n_pieces)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: not a sentencepiece model, or damaged", origin);
    if (out->model_type != SPM_UNIGRAM && out->model_type != SPM_BPE)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: sentencepiece model type %" PRIu64 " is not supported (supported: unigram, bpe)", origin,
                         out->model_type);
    if (out->space_as_suffix)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: treat_whitespace_as_suffix is not supported", origin);
    return NMLP_OK;
}

typedef struct ranked {
    float score;
    int32_t id;
} ranked;

static int compare_ranked(const void *a, const void *b) {
    const ranked *left = a;
    const ranked *right = b;
    if (left->score != right->score) return left->score > right->score ? -1 : 1;
    return (left->id > right->id) - (left->id < right->id);
}

/* The pair whose joined piece has the highest score is joined first. */
static nmlp_status build_merges(nmlp_tokenizer *t, const spm *model, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    size_t n = 0;
    ranked *order = nmlp_mem_new(model->n_pieces, sizeof *order, err);
    nmlp_token *tokens = nmlp_mem_new(model->n_pieces, sizeof *tokens, err);
    int32_t *ids = nmlp_mem_new(model->n_pieces, sizeof *ids, err);
    if (!order || !tokens || !ids) {
        st = NMLP_E_NOMEM;
        goto out;
    }
    for (size_t i = 0; i < model->n_pieces; i++)
        if (model->pieces[i].type == NORMAL) order[n++] = (ranked){model->pieces[i].score, (int32_t)i};
    qsort(order, n, sizeof *order, compare_ranked);
    for (size_t i = 0; i < n; i++) {
        ids[i] = order[i].id;
        tokens[i] = t->tokens[ids[i]];
    }
    st = nmlp_tokenizer_pair_entries(t, tokens, ids, n, err);
out:
    nmlp_mem_free(order);
    nmlp_mem_free(tokens);
    nmlp_mem_free(ids);
    return st;
}

/* Symbols of the user's are entries that win over all others. */
static nmlp_status build_unigram(nmlp_tokenizer *t, const spm *model, nmlp_err *err) {
    size_t n = 0;
    bool any = false;
    float highest = 0;
    float lowest = 0;
    for (size_t i = 0; i < model->n_pieces; i++) {
        const piece *p = &model->pieces[i];
        if (p->type != NORMAL && p->type != USER_DEFINED) continue;
        n++;
        if (p->type != NORMAL) continue;
        if (p->score > highest || !any) highest = p->score;
        if (p->score < lowest || !any) lowest = p->score;
        any = true;
    }
    NMLP_RETURN_IF_FAILED(nmlp_unigram_init(&t->unigram, n, err));
    t->unigram.single_precision = true;
    n = 0;
    for (size_t i = 0; i < model->n_pieces; i++) {
        const piece *p = &model->pieces[i];
        if (p->type != NORMAL && p->type != USER_DEFINED) continue;
        float score = p->type == NORMAL ? p->score : (float)((double)((float)p->len * highest) - 0.1);
        t->unigram.entries[n++] = (nmlp_unigram_entry){
            .text = t->tokens[i].text, .len = t->tokens[i].len, .id = (int32_t)i, .score = (double)score};
    }
    nmlp_unigram_sort(&t->unigram, (double)lowest);
    return NMLP_OK;
}

/* Control symbols become special tokens. Of BPE, the user's symbols are looked for in normalised text. */
static nmlp_status add_symbols(nmlp_tokenizer *t, const spm *model, const char *origin, nmlp_err *err) {
    for (size_t i = 0; i < model->n_pieces; i++) {
        const piece *p = &model->pieces[i];
        nmlp_added_token token = {.id = (int32_t)i, .special = p->type == CONTROL || p->type == UNKNOWN};
        if (p->type == UNKNOWN) t->unknown_id = (int32_t)i;
        if (token.special)
            NMLP_RETURN_IF_FAILED(nmlp_tokenizer_add_token(t, origin, p->text, p->len, false, &token, err));
        else if (p->type == USER_DEFINED && p->len && t->model == NMLP_TOKENIZER_CHAR_BPE)
            NMLP_RETURN_IF_FAILED(nmlp_added_tokens_put(&t->normalized_added, p->text, p->len, &token, err));
    }
    return NMLP_OK;
}

static nmlp_status add_parts(nmlp_tokenizer *t, const spm *model, nmlp_err *err) {
    const nmlp_normalizer_spec space = {
        .kind = NMLP_NORMALIZER_REPLACE, .literal = true, .pattern = "\xE2\x96\x81", .content = " "};
    NMLP_RETURN_IF_FAILED(nmlp_normalizer_add(t->normalizer, &model->normalizer, err));
    NMLP_RETURN_IF_FAILED(nmlp_normalizer_create(&t->decode.replace, err));
    NMLP_RETURN_IF_FAILED(nmlp_normalizer_add(t->decode.replace, &space, err));
    t->decode.byte_fallback = true;
    t->decode.strip_char = ' ';
    t->decode.strip_start = model->normalizer.add_prefix ? 1 : 0;
    if (model->bos_id < model->n_pieces && model->pieces[model->bos_id].type == CONTROL) {
        t->bos_id = (int64_t)model->bos_id;
        return nmlp_ids_push(&t->prefix, (int32_t)model->bos_id, err);
    }
    return NMLP_OK;
}

static nmlp_status build(nmlp_tokenizer *t, const spm *model, const char *origin, nmlp_err *err) {
    size_t key_bytes = 0;
    for (size_t i = 0; i < model->n_pieces; i++) key_bytes += model->pieces[i].len;
    t->model = model->model_type == SPM_BPE ? NMLP_TOKENIZER_CHAR_BPE : NMLP_TOKENIZER_UNIGRAM;
    t->byte_fallback = model->byte_fallback;
    t->fuse_unknown = true;
    NMLP_RETURN_IF_FAILED(nmlp_tokenizer_reserve(t, (int64_t)model->n_pieces, model->n_pieces, 2 * key_bytes, err));
    for (size_t i = 0; i < model->n_pieces; i++)
        NMLP_RETURN_IF_FAILED(
            nmlp_tokenizer_add_entry(t, origin, (int64_t)i, model->pieces[i].text, model->pieces[i].len, err));
    NMLP_RETURN_IF_FAILED((t->model == NMLP_TOKENIZER_CHAR_BPE ? build_merges : build_unigram)(t, model, err));
    NMLP_RETURN_IF_FAILED(add_parts(t, model, err));
    return add_symbols(t, model, origin, err);
}

nmlp_status nmlp_tokenizer_read_sentencepiece(nmlp_tokenizer *t, const char *data, size_t len, const char *origin,
                                              nmlp_err *err) {
    spm model = {.model_type = SPM_UNIGRAM,
                 .bos_id = 1,
                 .normalizer = {.kind = NMLP_NORMALIZER_SENTENCEPIECE,
                                .add_prefix = true,
                                .remove_extra_space = true,
                                .escape_space = true}};
    nmlp_status st = read_model(&model, data, len, origin, err);
    if (st == NMLP_OK) st = build(t, &model, origin, err);
    nmlp_mem_free(model.pieces);
    return st;
}
