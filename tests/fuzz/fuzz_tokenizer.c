/* Fuzzes tokenizer.json, tokenizer.model and the text given to them. Input: flags byte, length of the text in one byte,
 * the text, the file. */
#define _GNU_SOURCE /* memmem */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "text/tokenizer.h"
#include "text/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_decode(const nmlp_tokenizer *t, const nmlp_ids *ids, bool skip_special) {
    nmlp_str whole, pieces;
    nmlp_decode_stream stream;
    nmlp_str_init(&whole);
    nmlp_str_init(&pieces);
    nmlp_decode_stream_init(&stream, t, skip_special);
    if (nmlp_tokenizer_decode(t, ids->data, ids->len, skip_special, &whole, NULL) != NMLP_OK) __builtin_trap();
    for (size_t i = 0; i < ids->len; i++) {
        size_t before = pieces.len; /* whole characters are there, only whole ones may come */
        if (nmlp_decode_stream_push(&stream, ids->data[i], &pieces, NULL) != NMLP_OK) __builtin_trap();
        size_t added = pieces.len - before;
        if (nmlp_utf8_valid_prefix(nmlp_str_text(&pieces) + before, added) != added) __builtin_trap();
    }
    if (nmlp_decode_stream_flush(&stream, &pieces, NULL) != NMLP_OK) __builtin_trap();
    /* A run of byte tokens that becomes malformed is seen whole by one and in parts by the other. */
    bool replaced = memmem(nmlp_str_text(&pieces), pieces.len, "\xEF\xBF\xBD", 3) != NULL;
    if (!replaced && (whole.len != pieces.len || memcmp(nmlp_str_text(&whole), nmlp_str_text(&pieces), whole.len) != 0))
        __builtin_trap();
    nmlp_decode_stream_fini(&stream);
    nmlp_str_fini(&pieces);
    nmlp_str_fini(&whole);
}

static void use(const nmlp_tokenizer *t, const char *text, size_t len, unsigned flags) {
    nmlp_ids ids;
    nmlp_err err;
    nmlp_ids_init(&ids);
    if (nmlp_tokenizer_encode(t, text, len, flags & 1 ? NMLP_BOS_TEMPLATE : NMLP_BOS_NONE, flags & 2, &ids, &err) ==
        NMLP_OK) {
        for (size_t i = 0; i < ids.len; i++)
            if (ids.data[i] < 0 || ids.data[i] >= nmlp_tokenizer_vocab_size(t)) __builtin_trap();
        check_decode(t, &ids, flags & 4);
    } else if (ids.len != 0) {
        __builtin_trap();
    }
    nmlp_chat_message message = {"user", "hi <|im_end|>"};
    ids.len = 0;
    (void)nmlp_chat_encode(t, &message, 1, &ids, &err);
    nmlp_ids_fini(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    nmlp_tokenizer *t;
    nmlp_err err;
    if (size < 2) return 0;
    size_t text_len = data[1] < size - 2 ? data[1] : size - 2;
    const char *text = (const char *)data + 2;
    const char *json = text + text_len;
    bool is_model = data[0] & 8;
    if ((is_model ? nmlp_tokenizer_parse_model : nmlp_tokenizer_parse)(&t, json, size - 2 - text_len, "fuzz", &err) ==
        NMLP_OK) {
        use(t, text, text_len, data[0]);
        nmlp_tokenizer_destroy(t);
    }
    return 0;
}
