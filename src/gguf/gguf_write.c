#include "gguf/gguf_write.h"

#include <string.h>

void nmlp_gguf_put_int(nmlp_str *out, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) nmlp_str_putc(out, (char)(value >> (8 * i)));
}

void nmlp_gguf_put_text(nmlp_str *out, const char *text, size_t len) {
    nmlp_gguf_put_int(out, len, 8);
    nmlp_str_append(out, text, len);
}

void nmlp_gguf_put_f32(nmlp_str *out, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    nmlp_gguf_put_int(out, bits, 4);
}

static void add_key(nmlp_gguf_metadata *m, const char *key, nmlp_gguf_kind kind) {
    nmlp_gguf_put_text(&m->bytes, key, strlen(key));
    nmlp_gguf_put_int(&m->bytes, kind, 4);
    m->n++;
}

void nmlp_gguf_add_u32(nmlp_gguf_metadata *m, const char *key, int64_t value) {
    add_key(m, key, NMLP_GGUF_U32);
    nmlp_gguf_put_int(&m->bytes, (uint64_t)value, 4);
}

void nmlp_gguf_add_f32(nmlp_gguf_metadata *m, const char *key, double value) {
    add_key(m, key, NMLP_GGUF_F32);
    nmlp_gguf_put_f32(&m->bytes, (float)value);
}

void nmlp_gguf_add_bool(nmlp_gguf_metadata *m, const char *key, bool value) {
    add_key(m, key, NMLP_GGUF_BOOL);
    nmlp_gguf_put_int(&m->bytes, value, 1);
}

void nmlp_gguf_add_string(nmlp_gguf_metadata *m, const char *key, const char *text) {
    add_key(m, key, NMLP_GGUF_STRING);
    nmlp_gguf_put_text(&m->bytes, text, strlen(text));
}

void nmlp_gguf_add_array(nmlp_gguf_metadata *m, const char *key, nmlp_gguf_kind kind, uint64_t n) {
    add_key(m, key, NMLP_GGUF_ARRAY);
    nmlp_gguf_put_int(&m->bytes, kind, 4);
    nmlp_gguf_put_int(&m->bytes, n, 8);
}
