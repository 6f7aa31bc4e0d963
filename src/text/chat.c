/* Conversations: by the model's own template, or as Llama-3 and Qwen (ChatML) were trained on them. */
#include <string.h>

#include "text/tokenizer_internal.h"

typedef struct chat_tokens {
    nmlp_chat_format format;
    const char *start, *header_end, *header_gap, *end, *end_gap;
} chat_tokens;

/* start ROLE header_end header_gap CONTENT end end_gap; "" where a format has no such part. */
static const chat_tokens formats[] = {
    {NMLP_CHAT_LLAMA3, "<|start_header_id|>", "<|end_header_id|>", "\n\n", "<|eot_id|>", ""},
    {NMLP_CHAT_CHATML, "<|im_start|>", "", "\n", "<|im_end|>", "\n"},
};

static bool has_token(const nmlp_tokenizer *t, const char *name) {
    return !name[0] || nmlp_tokenizer_find(t, name) >= 0;
}

static const chat_tokens *find_format(const nmlp_tokenizer *t) {
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const chat_tokens *f = &formats[i];
        if (has_token(t, f->start) && has_token(t, f->header_end) && has_token(t, f->end)) return f;
    }
    return NULL;
}

nmlp_chat_format nmlp_tokenizer_chat_format(const nmlp_tokenizer *t) {
    const chat_tokens *format = find_format(t);
    return format ? format->format : NMLP_CHAT_NONE;
}

bool nmlp_chat_is_known(const nmlp_tokenizer *t) { return !t->chat_refusal && (t->chat || find_format(t)); }

int64_t nmlp_chat_end_id(const nmlp_tokenizer *t) {
    const chat_tokens *format = find_format(t);
    return format ? nmlp_tokenizer_find(t, format->end) : t->chat ? t->eos_id : -1;
}

static nmlp_status push_token(const nmlp_tokenizer *t, const char *name, nmlp_ids *out, nmlp_err *err) {
    return name[0] ? nmlp_ids_push(out, (int32_t)nmlp_tokenizer_find(t, name), err) : NMLP_OK;
}

static nmlp_status push_text(const nmlp_tokenizer *t, const nmlp_str *text, nmlp_ids *out, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_str_status(text, err));
    return nmlp_tokenizer_encode(t, nmlp_str_text(text), text->len, NMLP_BOS_NONE, false, out, err);
}

/* What stands between two special tokens is encoded as one text, as it was in training: the gap and the content's first
 * characters may share a token. content NULL: the header alone, for the answer to come. */
static nmlp_status push_message(const nmlp_tokenizer *t, const chat_tokens *format, const char *role,
                                const char *content, nmlp_ids *out, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_str text;
    nmlp_str_init(&text);
    NMLP_TRY(push_token(t, format->start, out, err));
    nmlp_str_puts(&text, role);
    if (format->header_end[0]) {
        NMLP_TRY(push_text(t, &text, out, err));
        NMLP_TRY(push_token(t, format->header_end, out, err));
        nmlp_str_clear(&text);
    }
    nmlp_str_puts(&text, format->header_gap);
    if (content) nmlp_str_puts(&text, content);
    NMLP_TRY(push_text(t, &text, out, err));
    if (content) {
        NMLP_TRY(push_token(t, format->end, out, err));
        nmlp_str_clear(&text);
        nmlp_str_puts(&text, format->end_gap);
        NMLP_TRY(push_text(t, &text, out, err));
    }
out:
    nmlp_str_fini(&text);
    return st;
}

static nmlp_status push_bos(const nmlp_tokenizer *t, const chat_tokens *format, nmlp_ids *out, nmlp_err *err) {
    if (t->prefix.len) return nmlp_tokenizer_encode(t, "", 0, NMLP_BOS_ALWAYS, false, out, err);
    if (format->format != NMLP_CHAT_LLAMA3) return NMLP_OK;
    int64_t bos = nmlp_tokenizer_find(t, "<|begin_of_text|>");
    return bos < 0 ? NMLP_OK : nmlp_ids_push(out, (int32_t)bos, err);
}

nmlp_status nmlp_chat_encode(const nmlp_tokenizer *t, const nmlp_chat_message *messages, size_t n_messages,
                             nmlp_ids *out, nmlp_err *err) {
    const chat_tokens *format = find_format(t);
    if (t->chat_refusal) return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s", t->chat_refusal);
    if (!format && !t->chat) {
        nmlp_fail(
            err, NMLP_E_UNSUPPORTED,
            "the model has no chat template, and its vocabulary no chat tokens (<|start_header_id|> of Llama-3 or "
            "<|im_start|> of ChatML)");
        nmlp_fail_hint(err, "this is a base model; give it plain text");
        return NMLP_E_UNSUPPORTED;
    }
    for (size_t i = 0; i < n_messages; i++)
        if (!messages[i].role || !messages[i].content)
            return nmlp_fail(err, NMLP_E_ARG, "chat message %zu has no role or no content", i);
    if (t->chat) return nmlp_chat_template_encode_messages(t->chat, t, messages, n_messages, out, err);
    size_t before = out->len;
    nmlp_status st = push_bos(t, format, out, err);
    for (size_t i = 0; i < n_messages && st == NMLP_OK; i++)
        st = push_message(t, format, messages[i].role, messages[i].content, out, err);
    if (st == NMLP_OK) st = push_message(t, format, "assistant", NULL, out, err);
    if (st != NMLP_OK) out->len = before;
    return st;
}
