/* A checkpoint of random weights: normal with standard deviation 0.02, norms 1, biases 0. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dir_stage.h"
#include "base/file.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/rng.h"
#include "checkpoint/checkpoint_write.h"
#include "checkpoint/target.h"
#include "model/model.h"
#include "model/preset.h"
#include "tensor/quant.h"

enum { TABLE_BITS = 12, TABLE_SIZE = 1 << TABLE_BITS, PIECE_ELEMS = 1 << 16, BLOCK_ELEMS = 1 << 24 };
static const double weight_deviation = 0.02;
/* Four deviations of Q8 and about three of Q4 are within range. */
static const float q8_scale = 0.08f / 127, q4_scale = 0x1p-7f;

struct synth {
    const nmlp_config *config;
    const nmlp_synth_options *options;
    nmlp_arena arena;
    nmlp_tensor_spec *specs;
    size_t n_specs;
    size_t capacity;
    uint16_t *block; /* [BLOCK_ELEMS] */
    int64_t params;
    int64_t bytes;
    /* Draws from the normal as bf16, Q8 and Q4 codes: picking from a table is far cheaper than drawing. */
    uint16_t table[TABLE_SIZE];
    int8_t q8_table[TABLE_SIZE];
    uint8_t q4_table[TABLE_SIZE]; /* of two */
};

static nmlp_status add_named(struct synth *s, const char *name, int64_t rows, int64_t cols, nmlp_err *err) {
    void *specs = s->specs;
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&specs, &s->capacity, s->n_specs + 1, sizeof *s->specs, err));
    s->specs = specs;
    nmlp_tensor_spec *spec = &s->specs[s->n_specs++];
    *spec = (nmlp_tensor_spec){.name = nmlp_arena_strdup(&s->arena, name, err),
                               .dtype = cols ? s->options->dtype : NMLP_DTYPE_BF16,
                               .group = s->options->group,
                               .n_dims = cols ? 2 : 1,
                               .shape = {rows, cols}};
    if (!nmlp_tensor_spec_fits(spec)) spec->dtype = NMLP_DTYPE_Q8;
    if (!nmlp_tensor_spec_fits(spec)) spec->dtype = NMLP_DTYPE_BF16;
    s->params += cols ? rows * cols : rows;
    s->bytes += (int64_t)nmlp_tensor_spec_bytes(spec);
    return spec->name ? NMLP_OK : NMLP_E_NOMEM;
}

static nmlp_status add_spec(struct synth *s, int64_t rows, int64_t cols, nmlp_err *err, const char *fmt, int64_t layer,
                            const char *matrix) {
    char name[128];
    snprintf(name, sizeof name, fmt, layer, matrix);
    return add_named(s, name, rows, cols, err);
}

/* A matrix, dense or as factors; `path` is its name without ".weight". */
static nmlp_status add_matrix(struct synth *s, const char *path, int64_t rows, int64_t cols, nmlp_err *err) {
    int64_t rank = s->config->compressed ? nmlp_rank_for_ratio(rows, cols, s->options->ratio, s->options->tile) : 0;
    char name[NMLP_MATRIX_PATH_MAX + 8];
    const char *const parts[] = {rank ? "u" : "weight", "v"};
    for (int i = 0; i < (rank ? 2 : 1); i++) {
        snprintf(name, sizeof name, "%s.%s", path, parts[i]);
        NMLP_RETURN_IF_FAILED(add_named(s, name, i == 0 ? rows : rank, i == 0 && rank ? rank : cols, err));
    }
    return NMLP_OK;
}

static nmlp_status add_mlps(struct synth *s, int64_t layer, nmlp_err *err) {
    const nmlp_config *c = s->config;
    int64_t inner = nmlp_config_mlp_inner(c, layer), first = NMLP_MLP_GATE;
    if (nmlp_config_has_experts(c, layer))
        NMLP_RETURN_IF_FAILED(add_spec(s, c->n_experts, c->hidden, err, "model.layers.%" PRId64 ".%s.gate.weight",
                                       layer,
                                       c->features->experts == NMLP_EXPERTS_MIXTRAL ? "block_sparse_moe" : "mlp"));
    if (c->features->fused && !c->compressed) {
        NMLP_RETURN_IF_FAILED(
            add_spec(s, 2 * inner, c->hidden, err, "model.layers.%" PRId64 ".mlp.%s.weight", layer, "gate_up_proj"));
        first = NMLP_MLP_DOWN;
    }
    for (int64_t e = 0; e < nmlp_config_mlp_count(c, layer); e++)
        for (int i = (int)first; i < NMLP_MLP_MATRICES; i++) {
            char path[NMLP_MATRIX_PATH_MAX];
            nmlp_mlp_matrix_path(path, c, layer, e, i);
            NMLP_RETURN_IF_FAILED(add_matrix(s, path, i == NMLP_MLP_DOWN ? c->hidden : inner,
                                             i == NMLP_MLP_DOWN ? inner : c->hidden, err));
        }
    return NMLP_OK;
}

static nmlp_status add_layer(struct synth *s, int64_t l, nmlp_err *err) {
    const nmlp_config *c = s->config;
    const nmlp_family *f = c->features;
    int64_t q_dim = c->n_heads * c->head_dim, kv_dim = c->n_kv_heads * c->head_dim, h = c->hidden;
    bool row_norm = f->qk_norm == NMLP_QK_NORM_ROW;
    const struct {
        const char *name;
        bool there;
        int64_t rows, cols;
    } parts[] = {
        {"input_layernorm.weight", f->norm_place != NMLP_NORM_AFTER, h, 0},
        {"self_attn.qkv_proj.weight", f->fused, q_dim + 2 * kv_dim, h},
        {"self_attn.q_proj.weight", !f->fused, q_dim, h},
        {"self_attn.k_proj.weight", !f->fused, kv_dim, h},
        {"self_attn.v_proj.weight", !f->fused, kv_dim, h},
        {"self_attn.o_proj.weight", true, h, q_dim},
        {"self_attn.q_proj.bias", c->qkv_bias, q_dim, 0},
        {"self_attn.k_proj.bias", c->qkv_bias, kv_dim, 0},
        {"self_attn.v_proj.bias", c->qkv_bias, kv_dim, 0},
        {"self_attn.o_proj.bias", c->o_bias, h, 0},
        {"post_attention_layernorm.weight", true, h, 0},
        {"pre_feedforward_layernorm.weight", f->norm_place == NMLP_NORM_AROUND, h, 0},
        {"post_feedforward_layernorm.weight", f->norm_place != NMLP_NORM_BEFORE, h, 0},
        {"self_attn.q_norm.weight", f->qk_norm != NMLP_QK_NORM_NONE, row_norm ? q_dim : c->head_dim, 0},
        {"self_attn.k_norm.weight", f->qk_norm != NMLP_QK_NORM_NONE, row_norm ? kv_dim : c->head_dim, 0},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].there)
            NMLP_RETURN_IF_FAILED(
                add_spec(s, parts[i].rows, parts[i].cols, err, "model.layers.%" PRId64 ".%s", l, parts[i].name));
    return add_mlps(s, l, err);
}

static nmlp_status list_tensors(struct synth *s, nmlp_err *err) {
    const nmlp_config *c = s->config;
    NMLP_RETURN_IF_FAILED(add_spec(s, c->vocab, c->hidden, err, "model.embed_tokens.weight", 0, ""));
    for (int64_t l = 0; l < c->n_layers; l++) NMLP_RETURN_IF_FAILED(add_layer(s, l, err));
    NMLP_RETURN_IF_FAILED(add_spec(s, c->hidden, 0, err, "model.norm.weight", 0, ""));
    if (!c->tied) NMLP_RETURN_IF_FAILED(add_spec(s, c->vocab, c->hidden, err, "lm_head.weight", 0, ""));
    return NMLP_OK;
}

struct fill {
    const void *table; /* of elements of that many bytes */
    size_t elem_bytes;
    char *out;
    int64_t n;
    uint64_t seed;
};

/* Every piece has a seed of its own, so threads can fill them in any order. */
static void fill_pieces(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct fill *f = ctx;
    (void)thread;
    for (int64_t piece = begin; piece < end; piece++) {
        int64_t stop = (piece + 1) * PIECE_ELEMS < f->n ? (piece + 1) * PIECE_ELEMS : f->n;
        nmlp_rng rng;
        nmlp_rng_seed(&rng, f->seed + (uint64_t)piece * UINT64_C(0x9e3779b97f4a7c15) * 7);
        uint64_t bits = 0;
        int left = 0;
        for (int64_t i = piece * PIECE_ELEMS; i < stop; i++) {
            if (left < TABLE_BITS) {
                bits = nmlp_rng_next(&rng);
                left = 64;
            }
            size_t pick = bits & (TABLE_SIZE - 1);
            if (f->elem_bytes == 2)
                memcpy(f->out + 2 * i, (const char *)f->table + 2 * pick, 2);
            else
                f->out[i] = ((const char *)f->table)[pick];
            bits >>= TABLE_BITS;
            left -= TABLE_BITS;
        }
    }
}

/* Elements, or bytes of codes, drawn from a table. */
static nmlp_status put_draws(struct synth *s, size_t i, nmlp_checkpoint_writer *writer, int64_t n, nmlp_err *err) {
    nmlp_dtype dtype = s->specs[i].dtype;
    for (int64_t at = 0; at < n; at += BLOCK_ELEMS) {
        int64_t len = n - at < BLOCK_ELEMS ? n - at : BLOCK_ELEMS;
        struct fill fill = {.table = dtype == NMLP_DTYPE_Q8        ? (const void *)s->q8_table
                                     : nmlp_dtype_bits(dtype) == 4 ? (const void *)s->q4_table
                                                                   : (const void *)s->table,
                            .elem_bytes = nmlp_dtype_bytes(dtype),
                            .out = (char *)s->block,
                            .n = len,
                            .seed = s->options->seed + (uint64_t)i * 1000003u + (uint64_t)at};
        nmlp_pool_for(s->options->pool, (len + PIECE_ELEMS - 1) / PIECE_ELEMS, 1, fill_pieces, &fill);
        NMLP_RETURN_IF_FAILED(nmlp_checkpoint_put(writer, s->block, (size_t)len * fill.elem_bytes, err));
    }
    return NMLP_OK;
}

static nmlp_status put_repeated(struct synth *s, nmlp_checkpoint_writer *writer, const void *element, size_t elem_bytes,
                                int64_t n, nmlp_err *err) {
    for (int64_t at = 0; at < n; at += BLOCK_ELEMS / 2) {
        int64_t len = n - at < BLOCK_ELEMS / 2 ? n - at : BLOCK_ELEMS / 2;
        for (int64_t k = 0; k < len; k++) memcpy((char *)s->block + (size_t)k * elem_bytes, element, elem_bytes);
        NMLP_RETURN_IF_FAILED(nmlp_checkpoint_put(writer, s->block, (size_t)len * elem_bytes, err));
    }
    return NMLP_OK;
}

/* n elements of one value. */
static nmlp_status put_constant(struct synth *s, nmlp_checkpoint_writer *writer, nmlp_dtype dtype, float value,
                                int64_t n, nmlp_err *err) {
    char element[sizeof(float)];
    nmlp_from_f32(element, dtype, &value, 1);
    return put_repeated(s, writer, element, nmlp_dtype_bytes(dtype), n, err);
}

/* Q4M: scales of rows, and one multiplier for all. */
static nmlp_status put_multiplied(struct synth *s, nmlp_checkpoint_writer *writer, int64_t rows, int64_t groups,
                                  nmlp_err *err) {
    const uint32_t word = 0xbbbbbbbbu; /* 4, as it is stored: 4 + 7 */
    float scale = q4_scale / (float)(4 * nmlp_quant_multiplier_step(NMLP_DTYPE_Q4M));
    NMLP_RETURN_IF_FAILED(put_constant(s, writer, NMLP_DTYPE_F32, scale, rows, err));
    return put_repeated(s, writer, &word, sizeof word, (int64_t)nmlp_quant_per_group_words(rows, groups), err);
}

static nmlp_status put(void *ctx, size_t i, nmlp_checkpoint_writer *writer, nmlp_err *err) {
    struct synth *s = ctx;
    const nmlp_tensor_spec *spec = &s->specs[i];
    int64_t rows = spec->shape[0], n = rows * spec->shape[1];
    bool is_bias = strstr(spec->name, ".bias") != NULL; /* of some families a norm is kept less 1 */
    float constant = is_bias || s->config->features->norm_plus_one ? 0 : 1;
    if (spec->n_dims == 1) return put_constant(s, writer, spec->dtype, constant, rows, err);
    NMLP_RETURN_IF_FAILED(put_draws(s, i, writer, nmlp_dtype_bits(spec->dtype) == 4 ? n / 2 : n, err));
    if (spec->dtype == NMLP_DTYPE_Q8) return put_constant(s, writer, NMLP_DTYPE_F32, q8_scale, rows, err);
    if (spec->dtype == NMLP_DTYPE_Q4) return put_constant(s, writer, NMLP_DTYPE_F16, q4_scale, n / spec->group, err);
    if (spec->dtype == NMLP_DTYPE_Q4M) return put_multiplied(s, writer, rows, spec->shape[1] / spec->group, err);
    return NMLP_OK;
}

/* A code of the given scale for one draw. */
static int draw_code(nmlp_rng *rng, float scale, int highest) {
    long code = lrint(weight_deviation * nmlp_rng_normal(rng) / (double)scale);
    return (int)(code > highest ? highest : code < -highest ? -highest : code);
}

static void draw_tables(struct synth *s) {
    nmlp_rng rng;
    nmlp_rng_seed(&rng, s->options->seed);
    for (int i = 0; i < TABLE_SIZE; i++)
        s->table[i] = nmlp_f32_to_bf16((float)(weight_deviation * nmlp_rng_normal(&rng)));
    for (int i = 0; i < TABLE_SIZE; i++) s->q8_table[i] = (int8_t)draw_code(&rng, q8_scale, 127);
    for (int i = 0; i < TABLE_SIZE; i++)
        s->q4_table[i] = (uint8_t)((draw_code(&rng, q4_scale, 7) + 8) | (draw_code(&rng, q4_scale, 7) + 8) << 4);
}

/* Byte-level BPE spells every byte as a printable character: printable Latin-1 stands for itself, the rest follows from
 * U+0100. */
static void put_byte_token(nmlp_json_writer *w, int byte, int *n_shifted) {
    bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    unsigned code = printable ? (unsigned)byte : 256u + (unsigned)(*n_shifted)++;
    char text[3] = {0};
    if (code < 0x80) {
        text[0] = (char)code;
    } else {
        text[0] = (char)(0xc0 | code >> 6);
        text[1] = (char)(0x80 | (code & 0x3f));
    }
    nmlp_json_put_int(w, text, byte);
}

static void tokenizer_text(nmlp_str *out) {
    nmlp_json_writer w;
    int n_shifted = 0;
    nmlp_json_writer_init(&w, out);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_put_string(&w, "version", "1.0");
    nmlp_json_begin_object(&w, "pre_tokenizer");
    nmlp_json_put_string(&w, "type", "ByteLevel");
    nmlp_json_put_bool(&w, "add_prefix_space", false);
    nmlp_json_put_bool(&w, "trim_offsets", true);
    nmlp_json_put_bool(&w, "use_regex", true);
    nmlp_json_end_object(&w);
    nmlp_json_begin_object(&w, "decoder");
    nmlp_json_put_string(&w, "type", "ByteLevel");
    nmlp_json_end_object(&w);
    nmlp_json_begin_object(&w, "model");
    nmlp_json_put_string(&w, "type", "BPE");
    nmlp_json_begin_object(&w, "vocab");
    for (int byte = 0; byte < 256; byte++) put_byte_token(&w, byte, &n_shifted);
    nmlp_json_end_object(&w);
    nmlp_json_begin_array(&w, "merges");
    nmlp_json_end_array(&w);
    nmlp_json_end_object(&w);
    nmlp_json_end_object(&w);
}

static nmlp_status write_tokenizer(const char *dir, nmlp_err *err) {
    char path[4096];
    nmlp_str text;
    nmlp_str_init(&text);
    tokenizer_text(&text);
    nmlp_status st = nmlp_str_status(&text, err);
    if (st == NMLP_OK) st = nmlp_path_join(path, sizeof path, dir, "tokenizer.json", err);
    if (st == NMLP_OK) st = nmlp_file_write_text(path, nmlp_str_text(&text), text.len, err);
    nmlp_str_fini(&text);
    return st;
}

static nmlp_status write_texts(const struct synth *s, const char *dir, nmlp_err *err) {
    char extra[128];
    snprintf(extra, sizeof extra, "{\"version\":1,\"ratio\":%.9g,\"tile\":%" PRId64 ",\"method\":\"random\"}",
             s->options->ratio, s->options->tile);
    NMLP_RETURN_IF_FAILED(
        nmlp_config_save(s->config, s->config->compressed ? extra : NULL, s->specs, s->n_specs, dir, err));
    return write_tokenizer(dir, err);
}

nmlp_status nmlp_synth_write(const char *dir, nmlp_config *config, const nmlp_synth_options *options, int64_t *params,
                             int64_t *bytes, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_dir_stage stage = {0};
    if (!(options->ratio >= 0 && options->ratio < 1))
        return nmlp_fail_field(err, NMLP_E_ARG, "ratio", "is %g; it must be from 0 to below 1", options->ratio);
    if (options->tile < 1 || options->tile > NMLP_RANK_TILE_MAX)
        return nmlp_fail_field(err, NMLP_E_ARG, "tile", "is %" PRId64 "; it must be from 1 to %d", options->tile,
                               NMLP_RANK_TILE_MAX);
    NMLP_RETURN_IF_FAILED(nmlp_target_check(dir, NULL, err));
    config->compressed = options->ratio > 0;
    if (options->n_layers > 0) config->n_layers = options->n_layers;
    struct synth *s = nmlp_mem_new(1, sizeof *s, err);
    if (!s) return NMLP_E_NOMEM;
    s->config = config;
    s->options = options;
    nmlp_arena_init(&s->arena);
    draw_tables(s);
    NMLP_TRY(list_tensors(s, err));
    s->block = nmlp_mem_new(BLOCK_ELEMS, sizeof *s->block, err);
    if (!s->block) {
        st = NMLP_E_NOMEM;
        goto out;
    }
    NMLP_TRY(nmlp_dir_stage_open(&stage, dir, false, err));
    nmlp_checkpoint_source source = {.specs = s->specs,
                                     .n_specs = s->n_specs,
                                     .put = put,
                                     .ctx = s,
                                     .progress = options->progress,
                                     .stage = "writing"};
    NMLP_TRY(nmlp_checkpoint_write(stage.temp_path, &source, err));
    NMLP_TRY(write_texts(s, stage.temp_path, err));
    NMLP_TRY(nmlp_dir_stage_commit(&stage, err));
    *params = s->params;
    *bytes = s->bytes;
out:
    nmlp_dir_stage_abort(&stage);
    nmlp_mem_free(s->specs);
    nmlp_mem_free(s->block);
    nmlp_arena_fini(&s->arena);
    nmlp_mem_free(s);
    return st;
}
