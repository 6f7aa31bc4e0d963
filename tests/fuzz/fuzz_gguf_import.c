/* A GGUF file that becomes a model directory: refused with nothing left behind, or a directory that opens and, written
 * as a GGUF file again, comes back. The input is the file itself, or, where it does not begin as one, says what to
 * write: a whole model of any types, architecture and tokenizer, and changes to its bytes. */
#include <string.h>
#include <sys/stat.h>

#include "fuzz/patched.h"
#include "fuzz/small_model.h"
#include "gguf/gguf_export.h"
#include "gguf/gguf_import.h"
#include "gguf/gguf_tokenizer.h"
#include "gguf/gguf_write.h"
#include "model/model.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Byte by byte; zeros behind the end. */
typedef struct recipe {
    const uint8_t *at;
    size_t left;
} recipe;

static uint8_t next(recipe *r) {
    if (r->left == 0) return 0;
    r->left--;
    return *r->at++;
}

typedef struct model_file {
    nmlp_gguf_metadata metadata;
    nmlp_str tensors, values;
    uint64_t n_tensors;
} model_file;

enum { ALIGNMENT = 32, N_TOKENS = 6, PLAIN_TYPES = 3 };

/* Types of any rows, of rows of 32 and of 256 weights. */
static const uint32_t types[] = {NMLP_GGUF_TYPE_F32,  NMLP_GGUF_TYPE_F16,  NMLP_GGUF_TYPE_BF16, NMLP_GGUF_TYPE_Q4_0,
                                 NMLP_GGUF_TYPE_Q4_1, NMLP_GGUF_TYPE_Q5_0, NMLP_GGUF_TYPE_Q5_1, NMLP_GGUF_TYPE_Q8_0,
                                 NMLP_GGUF_TYPE_Q4_K, NMLP_GGUF_TYPE_Q5_K, NMLP_GGUF_TYPE_Q6_K};

static void add_tensor(model_file *f, recipe *r, const char *name, int64_t rows, int64_t cols) {
    size_t n_types = cols % 256 == 0 ? sizeof types / sizeof types[0] : cols % 32 == 0 ? 8 : PLAIN_TYPES;
    uint32_t type = types[next(r) % (rows ? n_types : PLAIN_TYPES)];
    const nmlp_gguf_layout *layout = nmlp_gguf_layout_of(type);
    int64_t blocks = (rows ? rows : 1) * (cols / layout->block);
    nmlp_gguf_put_text(&f->tensors, name, strlen(name));
    nmlp_gguf_put_int(&f->tensors, rows ? 2 : 1, 4);
    nmlp_gguf_put_int(&f->tensors, (uint64_t)cols, 8);
    if (rows) nmlp_gguf_put_int(&f->tensors, (uint64_t)rows, 8);
    nmlp_gguf_put_int(&f->tensors, type, 4);
    nmlp_gguf_put_int(&f->tensors, f->values.len, 8);
    f->n_tensors++;
    for (size_t i = 0; i < (size_t)blocks * (size_t)layout->bytes; i++) nmlp_str_putc(&f->values, (char)(i * 7 & 0x3f));
    while (f->values.len % ALIGNMENT) nmlp_str_putc(&f->values, 0);
}

static void add_layers(model_file *f, recipe *r, const nmlp_config *c) {
    int64_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    uint8_t more = next(r); /* head, biases, norms, rope table */
    add_tensor(f, r, "token_embd.weight", N_TOKENS, c->hidden);
    add_tensor(f, r, "output_norm.weight", 0, c->hidden);
    if (more & 1) add_tensor(f, r, "output.weight", N_TOKENS, c->hidden);
    add_tensor(f, r, "blk.0.attn_norm.weight", 0, c->hidden);
    add_tensor(f, r, "blk.0.ffn_norm.weight", 0, c->hidden);
    add_tensor(f, r, "blk.0.attn_q.weight", q, c->hidden);
    add_tensor(f, r, "blk.0.attn_k.weight", kv, c->hidden);
    add_tensor(f, r, "blk.0.attn_v.weight", kv, c->hidden);
    add_tensor(f, r, "blk.0.attn_output.weight", c->hidden, q);
    add_tensor(f, r, "blk.0.ffn_gate.weight", c->intermediate, c->hidden);
    add_tensor(f, r, "blk.0.ffn_up.weight", c->intermediate, c->hidden);
    add_tensor(f, r, "blk.0.ffn_down.weight", c->hidden, c->intermediate);
    if (more & 2) {
        add_tensor(f, r, "blk.0.attn_q.bias", 0, q);
        add_tensor(f, r, "blk.0.attn_k.bias", 0, kv);
        add_tensor(f, r, "blk.0.attn_v.bias", 0, kv);
    }
    if (more & 4) add_tensor(f, r, "blk.0.attn_output.bias", 0, c->hidden);
    if (more & 8) {
        add_tensor(f, r, "blk.0.attn_q_norm.weight", 0, c->head_dim);
        add_tensor(f, r, "blk.0.attn_k_norm.weight", 0, c->head_dim);
    }
    if (more & 16) add_tensor(f, r, "rope_freqs.weight", 0, c->head_dim / 2);
    if (more & 32) add_tensor(f, r, "blk.0.ffn_gate_inp.weight", c->intermediate, c->hidden);
}

static void add_config(model_file *f, recipe *r, const nmlp_config *c) {
    static const char *const architectures[] = {"llama", "qwen2", "qwen3", "mamba"};
    static const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"embedding_length", 0},     {"feed_forward_length", 1},     {"block_count", 2},
                 {"attention.head_count", 3}, {"attention.head_count_kv", 4}, {"attention.key_length", 5},
                 {"context_length", 6},       {"rope.dimension_count", 5}};
    const int64_t values[] = {c->hidden, c->intermediate, 1, c->n_heads, c->n_kv_heads, c->head_dim, 64};
    const char *architecture = architectures[next(r) % 4];
    char key[96];
    nmlp_gguf_add_string(&f->metadata, "general.architecture", architecture);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        snprintf(key, sizeof key, "%s.%s", architecture, sizes[i].name);
        nmlp_gguf_add_u32(&f->metadata, key, values[sizes[i].value]);
    }
    snprintf(key, sizeof key, "%s.rope.freq_base", architecture);
    nmlp_gguf_add_f32(&f->metadata, key, 1 + next(r));
    uint8_t scaling = next(r);
    snprintf(key, sizeof key, "%s.rope.scaling.type", architecture);
    if (scaling & 1) nmlp_gguf_add_string(&f->metadata, key, scaling & 2 ? "linear" : scaling & 4 ? "yarn" : "none");
}

static void add_tokenizer(model_file *f, recipe *r) {
    static const char *const models[] = {"gpt2", "llama", "none", "bert"};
    static const char *const tokens[N_TOKENS] = {"a", "b", "ab", "<0x41>", "<s>", "\xe2\x96\x81"};
    nmlp_gguf_metadata *m = &f->metadata;
    uint8_t what = next(r), parts = next(r);
    if (parts & 128) return;
    const nmlp_gguf_split *split = nmlp_gguf_split_at(what >> 2 & 7);
    nmlp_gguf_add_string(m, "tokenizer.ggml.model", models[what & 3]);
    if (parts & 1) nmlp_gguf_add_string(m, "tokenizer.ggml.pre", split ? split->name : "other");
    nmlp_gguf_add_array(m, "tokenizer.ggml.tokens", NMLP_GGUF_STRING, N_TOKENS);
    for (int i = 0; i < N_TOKENS; i++) nmlp_gguf_put_text(&m->bytes, tokens[i], strlen(tokens[i]));
    if (parts & 2) {
        nmlp_gguf_add_array(m, "tokenizer.ggml.token_type", NMLP_GGUF_I32, N_TOKENS);
        for (int i = 0; i < N_TOKENS; i++) nmlp_gguf_put_int(&m->bytes, next(r), 4);
    }
    if (parts & 4) {
        nmlp_gguf_add_array(m, "tokenizer.ggml.scores", NMLP_GGUF_F32, N_TOKENS);
        for (int i = 0; i < N_TOKENS; i++) nmlp_gguf_put_f32(&m->bytes, (float)(int8_t)next(r));
    }
    if (parts & 8) {
        nmlp_gguf_add_array(m, "tokenizer.ggml.merges", NMLP_GGUF_STRING, 1);
        nmlp_gguf_put_text(&m->bytes, "a b", 3);
    }
    if (parts & 16) nmlp_gguf_add_u32(m, "tokenizer.ggml.bos_token_id", next(r));
    if (parts & 32) nmlp_gguf_add_u32(m, "tokenizer.ggml.eos_token_id", next(r));
    if (parts & 64) nmlp_gguf_add_string(m, "tokenizer.chat_template", "{{ messages[0].content }}");
    if (what & 32) nmlp_gguf_add_bool(m, "tokenizer.ggml.add_bos_token", what & 64);
    if (what & 128) nmlp_gguf_add_bool(m, "tokenizer.ggml.add_space_prefix", what & 64);
}

static const char *write_file(recipe r) {
    static payload p;
    model_file f = {0};
    nmlp_str whole;
    nmlp_config c = small_config();
    uint8_t size = next(&r); /* rows of any length, of 32, of 256 */
    c.hidden = size % 3 == 0 ? 8 : size % 3 == 1 ? 32 : 256;
    c.intermediate = size % 3 == 1 ? 32 : 8;
    c.head_dim = size & 4 ? 16 : 4;
    nmlp_str_init(&f.metadata.bytes);
    nmlp_str_init(&f.tensors);
    nmlp_str_init(&f.values);
    nmlp_str_init(&whole);
    add_config(&f, &r, &c);
    add_tokenizer(&f, &r);
    add_layers(&f, &r, &c);
    nmlp_str_puts(&whole, "GGUF");
    nmlp_gguf_put_int(&whole, 3, 4);
    nmlp_gguf_put_int(&whole, f.n_tensors, 8);
    nmlp_gguf_put_int(&whole, f.metadata.n, 8);
    nmlp_str_append(&whole, nmlp_str_text(&f.metadata.bytes), f.metadata.bytes.len);
    nmlp_str_append(&whole, nmlp_str_text(&f.tensors), f.tensors.len);
    while (whole.len % ALIGNMENT) nmlp_str_putc(&whole, 0);
    nmlp_str_append(&whole, nmlp_str_text(&f.values), f.values.len);
    p.len = whole.len < sizeof p.bytes ? whole.len : sizeof p.bytes;
    memcpy(p.bytes, nmlp_str_text(&whole), p.len);
    payload_patch(&p, r.at, r.left);
    nmlp_str_fini(&whole);
    nmlp_str_fini(&f.values);
    nmlp_str_fini(&f.tensors);
    nmlp_str_fini(&f.metadata.bytes);
    return in_memory_file("in.gguf", p.bytes, p.len);
}

static void remove_out(const char *dir) {
    static const char *const names[] = {"config.json",     "model.safetensors",     "tokenizer.json",
                                        "tokenizer.model", "tokenizer_config.json", "README.md"};
    char path[256];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    if (rmdir(dir) != 0) abort();
}

/* What we write, we read. */
static void check_export(const nmlp_model *model, const char *type, const char *dir) {
    char path[128];
    nmlp_gguf_result result;
    nmlp_err err = {0};
    snprintf(path, sizeof path, "%s/again.gguf", in_memory_dir());
    if (nmlp_gguf_export(model, path, type, NULL, &result, &err) != NMLP_OK) {
        if (!err.message[0]) abort();
        return;
    }
    if (nmlp_gguf_import(path, dir, NULL, &result, &err) != NMLP_OK) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    remove_out(dir);
}

/* Returns whether it was imported. */
static bool try(const char *file, const char *type) {
    char dir[128], partial[160], again[160];
    nmlp_gguf_result result;
    nmlp_model model;
    nmlp_tokenizer *tokenizer;
    nmlp_err err = {0};
    snprintf(dir, sizeof dir, "%s/out", in_memory_dir());
    snprintf(partial, sizeof partial, "%s.partial", dir);
    snprintf(again, sizeof again, "%s-again", dir);
    nmlp_status st = nmlp_gguf_import(file, dir, NULL, &result, &err);
    if (access(partial, F_OK) == 0 || (st != NMLP_OK && (!err.message[0] || access(dir, F_OK) == 0))) abort();
    if (st != NMLP_OK) return false;
    if (nmlp_model_open(&model, dir, &err) != NMLP_OK) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    check_export(&model, type, again);
    nmlp_model_close(&model);
    if (nmlp_tokenizer_load(&tokenizer, dir, &err) == NMLP_OK) nmlp_tokenizer_destroy(tokenizer);
    remove_out(dir);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool checked;
    static const uint8_t llama[] = {0, 0, 0, 0, 1, 0}; /* its size, architecture, rope and tokenizer */
    /* A whole file is imported: others are not refused for something else. */
    if (!checked && !try(write_file((recipe){llama, sizeof llama}), "bf16")) abort();
    checked = true;
    bool raw = size >= 4 && memcmp(data, "GGUF", 4) == 0;
    static const char *const types_written[] = {"bf16", "q8_0", "q4_0"};
    const char *type = types_written[size > 0 ? data[size - 1] % 3 : 0];
    (void)try(raw ? in_memory_file("in.gguf", data, size) : write_file((recipe){data, size}), type);
    return 0;
}
