/* Any work file of a compression whose checksum is right: what a forger can write. The first byte chooses the kind, the
 * second says how the file is made (patched.h). Opening never crashes, what it accepts lies inside the file, and
 * written again it is accepted again. */
#include "compress/factor/layer_file.h"
#include "compress/quantize/quant_file.h"
#include "compress/ranks/rank_file.h"
#include "fuzz/patched.h"
#include "fuzz/small_model.h"
#include "tensor/quant.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FINGERPRINT = 77, RANK = 2, QUANT_VIEWS = 3, QUANT_ROWS = 4, QUANT_COLS = 64 };

static nmlp_config config;
static const double numbers[512]; /* of what is stored */

static const char *again_path(void) {
    static char path[128];
    snprintf(path, sizeof path, "%s/again", in_memory_dir());
    return path;
}

/* Every byte that a view says it has. */
static unsigned touch(const void *data, size_t bytes) {
    unsigned sum = 0;
    if (!data) abort();
    for (size_t i = 0; i < bytes; i++) sum += ((const unsigned char *)data)[i];
    return sum;
}

/* ---- ranks ---- */

static nmlp_status read_ranks(const char *path, nmlp_rank_plan *plan, nmlp_layer_ranks ranks[2],
                              nmlp_work_state *state) {
    nmlp_err err;
    nmlp_block blocks[2] = {nmlp_block_of(&config, NMLP_MODULE_MLP, 0, 1),
                            nmlp_block_of(&config, NMLP_MODULE_ATTENTION, 0, 1)};
    memset(ranks, 0, 2 * sizeof *ranks);
    return nmlp_rank_plan_read(path, FINGERPRINT, blocks, 2, plan, ranks, state, &err);
}

static nmlp_status write_ranks(const char *path, nmlp_err *err) {
    nmlp_rank_plan plan = {.name = "adaptive", .n_candidates = 2};
    nmlp_layer_ranks ranks[2] = {{.rank = {RANK, RANK, 1}, .joint = true}, {.rank = {1, 0, 1, 1}}};
    return nmlp_rank_plan_write(path, FINGERPRINT, &plan, ranks, 2, err);
}

static bool try_ranks(const char *path) {
    nmlp_rank_plan plan;
    nmlp_layer_ranks ranks[2];
    nmlp_work_state state;
    nmlp_err err;
    if (read_ranks(path, &plan, ranks, &state) != NMLP_OK || state != NMLP_WORK_VALID) return false;
    if (nmlp_rank_plan_write(again_path(), FINGERPRINT, &plan, ranks, 2, &err) != NMLP_OK ||
        read_ranks(again_path(), &plan, ranks, &state) != NMLP_OK || state != NMLP_WORK_VALID)
        abort();
    return true;
}

/* ---- nested factors ---- */

static nmlp_status write_factors_of(const char *path, nmlp_module_kind kind, nmlp_err *err) {
    nmlp_block b = nmlp_block_of(&config, kind, 0, 1);
    nmlp_nested nested[NMLP_NESTED_COUNT] = {0};
    for (int i = 0; i <= b.n_first + 1; i++)
        nested[i] = (nmlp_nested){.rows = b.rows[i],
                                  .cols = b.cols[i],
                                  .slices = 1,
                                  .rank = 1,
                                  .full = b.cols[0],
                                  .dtype = NMLP_DTYPE_BF16,
                                  .ut = numbers,
                                  .v = numbers,
                                  .loss = numbers};
    int64_t n_weights = kind == NMLP_MODULE_MLP ? b.rows[b.n_first + 1] : 0;
    return nmlp_factor_file_write(path, FINGERPRINT, nested, numbers, n_weights, err);
}

static nmlp_status write_mlp_factors(const char *path, nmlp_err *err) {
    return write_factors_of(path, NMLP_MODULE_MLP, err);
}

static nmlp_status write_attention_factors(const char *path, nmlp_err *err) {
    return write_factors_of(path, NMLP_MODULE_ATTENTION, err);
}

static bool try_factors(const char *path) {
    bool any = false;
    for (int kind = 0; kind < NMLP_MODULES; kind++) {
        nmlp_factor_file file;
        nmlp_work_state state;
        nmlp_err err;
        nmlp_block block = nmlp_block_of(&config, (nmlp_module_kind)kind, 0, 1);
        if (nmlp_factor_file_open(&file, path, FINGERPRINT, &block, 1, &state, &err) != NMLP_OK ||
            state != NMLP_WORK_VALID)
            continue;
        any = true;
        for (int i = 0; i < NMLP_NESTED_COUNT; i++) {
            const nmlp_nested *n = &file.nested[i];
            if (n->rank == 0) continue;
            (void)touch(n->loss, (size_t)(n->full + 1) * sizeof *n->loss);
            (void)touch(n->ut, (size_t)(n->rank * n->rows) * nmlp_dtype_bytes(n->dtype));
            (void)touch(n->v, (size_t)(n->rank * n->cols) * nmlp_dtype_bytes(n->dtype));
        }
        nmlp_factor_file_close(&file);
    }
    return any;
}

/* ---- finished layers ---- */

struct layer_case {
    nmlp_module_kind kind;
    nmlp_layer_ranks ranks;
    nmlp_factors dense[NMLP_MODULE_MATRICES_MAX];
};

static struct layer_case layer_case_of(nmlp_module_kind kind, bool joint) {
    struct layer_case c = {.kind = kind, .ranks = {.joint = joint}};
    nmlp_block b = nmlp_block_of(&config, kind, 0, 1);
    for (int i = 0; i < b.n_first; i++) c.ranks.rank[i] = RANK;
    for (int i = 0; i <= b.n_first; i++) c.dense[i].w = nmlp_view_2d(numbers, NMLP_DTYPE_F32, b.rows[i], b.cols[i]);
    return c;
}

/* The last matrix dense with values of its own, the others factors. */
static nmlp_status write_layer(const char *path, const struct layer_case *c, nmlp_err *err) {
    static const double own[512];
    nmlp_layer_file layer = {.ranks = c->ranks, .dense_refitted = true};
    int last = nmlp_module_of(c->kind)->n_first;
    for (int i = 0; i < last; i++) {
        const double *v = own + (c->ranks.joint ? 0 : 64 * i);
        layer.factors[i].u = nmlp_view_2d(own, NMLP_DTYPE_BF16, c->dense[i].w.shape[0], RANK);
        layer.factors[i].v = nmlp_view_2d(v, NMLP_DTYPE_BF16, RANK, c->dense[i].w.shape[1]);
    }
    layer.factors[last].w = nmlp_view_2d(own, NMLP_DTYPE_F32, c->dense[last].w.shape[0], c->dense[last].w.shape[1]);
    return nmlp_layer_file_write(path, FINGERPRINT, &layer, c->kind, c->dense, err);
}

static bool try_layer(const char *path, const struct layer_case *c) {
    nmlp_layer_file file, again;
    nmlp_factors f[NMLP_MODULE_MATRICES_MAX];
    nmlp_work_state state;
    nmlp_err err;
    if (nmlp_layer_file_open(&file, path, FINGERPRINT, &c->ranks, 1, c->kind, c->dense, &state, &err) != NMLP_OK ||
        state != NMLP_WORK_VALID)
        return false;
    nmlp_layer_file_factors(&file, c->kind, c->dense, f);
    for (int i = 0; i <= nmlp_module_of(c->kind)->n_first; i++) {
        const nmlp_view *views[] = {&f[i].w, &f[i].u, &f[i].v};
        for (int k = 0; k < 3; k++)
            if (views[k]->data) (void)touch(views[k]->data, nmlp_view_bytes(views[k]));
        if (!f[i].w.data && (!f[i].u.data || !f[i].v.data)) abort();
    }
    if (c->kind == NMLP_MODULE_MLP && !nmlp_layer_file_mlp(&file, c->dense).gate.u.data) abort();
    if (nmlp_layer_file_write(again_path(), FINGERPRINT, &file, c->kind, c->dense, &err) != NMLP_OK ||
        nmlp_layer_file_open(&again, again_path(), FINGERPRINT, &c->ranks, 1, c->kind, c->dense, &state, &err) !=
            NMLP_OK ||
        state != NMLP_WORK_VALID)
        abort();
    nmlp_layer_file_close(&again);
    nmlp_layer_file_close(&file);
    return true;
}

/* ---- quantised matrices and formats ---- */

static void dense_views(nmlp_view views[QUANT_VIEWS], nmlp_view *list[QUANT_VIEWS]) {
    for (int i = 0; i < QUANT_VIEWS; i++) {
        views[i] = nmlp_view_2d(numbers, NMLP_DTYPE_F32, QUANT_ROWS, QUANT_COLS);
        list[i] = &views[i];
    }
}

static nmlp_status write_quantised(const char *path, nmlp_err *err) {
    static const int8_t codes[QUANT_ROWS * QUANT_COLS];
    static const float scales[QUANT_ROWS];
    static const uint8_t nibbles[QUANT_ROWS * QUANT_COLS / 2];
    static const uint16_t halves[QUANT_ROWS * QUANT_COLS / 32];
    static const int8_t zeros[QUANT_ROWS * QUANT_COLS / 16];
    nmlp_view views[QUANT_VIEWS] = {
        nmlp_quant_view_q8(codes, scales, QUANT_ROWS, QUANT_COLS),
        nmlp_quant_view_q4(nibbles, halves, 32, QUANT_ROWS, QUANT_COLS),
        nmlp_quant_view_multiplied((const uint8_t *)codes, NMLP_DTYPE_Q5M, scales, zeros, QUANT_ROWS, QUANT_COLS)};
    nmlp_view *list[QUANT_VIEWS] = {&views[0], &views[1], &views[2]};
    views[1].per_group = zeros;
    return nmlp_quant_file_write(path, FINGERPRINT, list, QUANT_VIEWS, err);
}

static bool try_quantised(const char *path) {
    nmlp_view views[QUANT_VIEWS], other[QUANT_VIEWS];
    nmlp_view *list[QUANT_VIEWS], *other_list[QUANT_VIEWS];
    nmlp_file_map map, again;
    nmlp_work_state state;
    nmlp_err err;
    dense_views(views, list);
    dense_views(other, other_list);
    if (nmlp_quant_file_open(&map, path, FINGERPRINT, list, QUANT_VIEWS, &state, &err) != NMLP_OK ||
        state != NMLP_WORK_VALID)
        return false;
    for (int i = 0; i < QUANT_VIEWS; i++) {
        float row[QUANT_COLS];
        if (!nmlp_dtype_is_quantised(views[i].dtype)) continue;
        for (int64_t r = 0; r < views[i].shape[0]; r++) nmlp_quant_row_to_f32(row, &views[i], r);
    }
    if (nmlp_quant_file_write(again_path(), FINGERPRINT, list, QUANT_VIEWS, &err) != NMLP_OK ||
        nmlp_quant_file_open(&again, again_path(), FINGERPRINT, other_list, QUANT_VIEWS, &state, &err) != NMLP_OK ||
        state != NMLP_WORK_VALID)
        abort();
    nmlp_file_map_close(&again);
    nmlp_file_map_close(&map);
    return true;
}

static nmlp_status write_formats(const char *path, nmlp_err *err) {
    nmlp_quant_format formats[NMLP_QUANT_MATRICES], head = {.dtype = NMLP_DTYPE_BF16};
    for (int i = 0; i < NMLP_QUANT_MATRICES; i++)
        formats[i] = i % 2 ? (nmlp_quant_format){.dtype = NMLP_DTYPE_Q4, .group = 32, .zeros = true}
                           : (nmlp_quant_format){.dtype = NMLP_DTYPE_Q4M, .group = 16};
    return nmlp_quant_formats_write(path, FINGERPRINT, formats, NMLP_QUANT_MATRICES, &head, err);
}

static bool try_formats(const char *path) {
    nmlp_quant_format formats[NMLP_QUANT_MATRICES], head;
    nmlp_work_state state;
    nmlp_err err;
    if (nmlp_quant_formats_read(path, FINGERPRINT, formats, NMLP_QUANT_MATRICES, &head, &state, &err) != NMLP_OK ||
        state != NMLP_WORK_VALID)
        return false;
    for (int i = 0; i < NMLP_QUANT_MATRICES; i++)
        if ((formats[i].dtype == NMLP_DTYPE_Q4 || nmlp_quant_has_multipliers(formats[i].dtype)) !=
            (formats[i].group != 0))
            abort();
    if (nmlp_quant_formats_write(again_path(), FINGERPRINT, formats, NMLP_QUANT_MATRICES, &head, &err) != NMLP_OK)
        abort();
    payload read = payload_of(path), again = payload_of(again_path());
    if (!same_payload(&read, &again)) abort();
    return true;
}

/* ---- all kinds ---- */

static nmlp_status write_mlp(const char *path, nmlp_err *err) {
    struct layer_case c = layer_case_of(NMLP_MODULE_MLP, false);
    return write_layer(path, &c, err);
}

static nmlp_status write_joint_mlp(const char *path, nmlp_err *err) {
    struct layer_case c = layer_case_of(NMLP_MODULE_MLP, true);
    return write_layer(path, &c, err);
}

static nmlp_status write_attention(const char *path, nmlp_err *err) {
    struct layer_case c = layer_case_of(NMLP_MODULE_ATTENTION, true);
    return write_layer(path, &c, err);
}

static bool try_mlp(const char *path) {
    struct layer_case c = layer_case_of(NMLP_MODULE_MLP, false);
    return try_layer(path, &c);
}

static bool try_joint_mlp(const char *path) {
    struct layer_case c = layer_case_of(NMLP_MODULE_MLP, true);
    return try_layer(path, &c);
}

static bool try_attention(const char *path) {
    struct layer_case c = layer_case_of(NMLP_MODULE_ATTENTION, true);
    return try_layer(path, &c);
}

static const struct kind {
    const char *magic;
    nmlp_status (*write)(const char *path, nmlp_err *err);
    bool (*try)(const char *path); /* whether it was accepted */
} kinds[] = {
    {"NMLPPLN3", write_ranks, try_ranks},
    {"NMLPNST5", write_mlp_factors, try_factors},
    {"NMLPLAY3", write_mlp, try_mlp},
    {"NMLPLAY3", write_joint_mlp, try_joint_mlp},
    {"NMLPQNT4", write_quantised, try_quantised},
    {"NMLPQPL4", write_formats, try_formats},
    {"NMLPLAY3", write_attention, try_attention},
    {"NMLPNST5", write_attention_factors, try_factors},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static payload bases[N_KINDS];

/* The program's own files are accepted: others are not refused for something else. */
static void write_bases(void) {
    config = small_config();
    for (int i = 0; i < N_KINDS; i++) {
        nmlp_err err = {0};
        if (kinds[i].write(again_path(), &err) != NMLP_OK) abort();
        bases[i] = payload_of(again_path());
        if (!kinds[i].try(payload_file(&bases[i], 0, kinds[i].magic, FINGERPRINT, NULL, 0))) {
            fprintf(stderr, "kind %d: what was written is not read\n", i);
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (config.hidden == 0) write_bases();
    if (size < 2) return 0;
    int k = data[0] % N_KINDS;
    (void)kinds[k].try(payload_file(&bases[k], data[1], kinds[k].magic, FINGERPRINT, data + 2, size - 2));
    return 0;
}
