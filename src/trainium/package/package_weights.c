/* Packed weights: the checkpoint's matrices are [outputs, inputs]; kernels multiply from the right, so each is
 * transposed and cut into the tiles of its packing, one tensor at a time. A rank's part of a matrix is a range of its
 * outputs (gate and up) or inputs (down). */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/checkpoint_write.h"
#include "tensor/quant.h"
#include "trainium/neuron/pack.h"
#include "trainium/package/package_internal.h"

enum { NAME_MAX_BYTES = 64, PATH_MAX_BYTES = 4096 };

typedef struct packed_tensor {
    size_t layer;
    int tensor; /* of the form's program */
    char name[NAME_MAX_BYTES];
} packed_tensor;

typedef struct packing_job {
    nmlp_package *package;
    int64_t rank;
    packed_tensor *tensors;
    nmlp_tensor_spec *specs;
    size_t n;
} packing_job;

static nmlp_dtype stored_dtype(nmlp_nc_dtype dtype) {
    static const nmlp_dtype of[] = {NMLP_DTYPE_F32, NMLP_DTYPE_BF16, NMLP_DTYPE_F16, NMLP_DTYPE_FP8};
    return of[dtype];
}

static const nmlp_program *program_of(const nmlp_package *p, size_t layer) {
    return p->plans[p->forms.of_layer[layer]].program[0]; /* those of the other buckets read the same */
}

/* "u_gate" is the first factor of gate, which the checkpoint calls v [r, inputs]; "v_gate" its second, u [outputs, r];
 * "w_gate" the matrix itself. */
static const nmlp_view *view_of(const nmlp_layer *layer, const char *matrix) {
    const char *which = matrix + 2;
    const nmlp_factors *f = &layer->mlp[strcmp(which, "up") == 0     ? NMLP_MLP_UP
                                        : strcmp(which, "down") == 0 ? NMLP_MLP_DOWN
                                                                     : NMLP_MLP_GATE];
    return matrix[0] == 'u' ? &f->v : matrix[0] == 'v' ? &f->u : &f->w;
}

/* The part of a view [N,K] that a rank has. */
typedef struct matrix_part {
    int64_t n_first, n, k_first, k;
} matrix_part;

static matrix_part part_of(const nmlp_view *view, const char *matrix, bool of_slices, int64_t rank, int64_t tp) {
    matrix_part part = {.n = view->shape[0], .k = view->shape[1]};
    bool down = strcmp(matrix + 2, "down") == 0;
    if (of_slices && matrix[0] != 'w') { /* the slices' factors lie one below the other */
        part.n /= tp;
        part.n_first = rank * part.n;
    } else if (down && matrix[0] != 'v') { /* inputs are the intermediate width */
        part.k /= tp;
        part.k_first = rank * part.k;
    } else if (!down && matrix[0] != 'u') {
        part.n /= tp;
        part.n_first = rank * part.n;
    }
    return part;
}

/* Does the kernel's matrix multiply x, not an activation? */
static bool reads_x(const char *matrix) { return strcmp(matrix + 2, "down") != 0 && matrix[0] != 'v'; }

/* out[K,N] in `dtype` from a part of view[N,K]; each column k of the view times norm[k] unless norm is NULL. Codes of
 * FP8 stay what they are. */
static nmlp_status transpose(char *out, nmlp_dtype dtype, const nmlp_view *view, const float *norm, matrix_part part,
                             nmlp_err *err) {
    int64_t width = view->shape[1];
    size_t elem = nmlp_dtype_bytes(dtype);
    float *row = nmlp_mem_new((size_t)width, sizeof *row, err);
    char *cast = nmlp_mem_new((size_t)width, elem, err);
    nmlp_status st = row && cast ? NMLP_OK : NMLP_E_NOMEM;
    for (int64_t i = 0; st == NMLP_OK && i < part.n; i++) {
        if (dtype == NMLP_DTYPE_FP8) {
            memcpy(cast, nmlp_view_row(view, part.n_first + i), (size_t)width);
        } else {
            nmlp_quant_row_to_f32(row, view, part.n_first + i);
            for (int64_t k = 0; norm && k < width; k++) row[k] *= norm[k];
            nmlp_from_f32(cast, dtype, row, (size_t)width);
        }
        const char *from = cast + (size_t)part.k_first * elem;
        for (int64_t j = 0; j < part.k; j++)
            memcpy(out + (size_t)(j * part.n + i) * elem, from + (size_t)j * elem, elem);
    }
    nmlp_mem_free(row);
    nmlp_mem_free(cast);
    return st;
}

/* `part` counts the cores of all ranks. */
static nmlp_status pack_plane(const packing_job *job, const packed_tensor *t, const nmlp_pack *pack, int64_t plane,
                              const char *matrix, int64_t part_number, void *packed, nmlp_err *err) {
    const nmlp_view *view = view_of(&job->package->model->layers[t->layer], matrix);
    nmlp_dtype dtype = job->package->fp8 ? NMLP_DTYPE_FP8 : stored_dtype(job->package->options->dtype);
    const nmlp_package_options *o = job->package->options;
    matrix_part part =
        part_of(view, matrix, job->package->model->layers[t->layer].slices > 0, part_number, o->tp * o->lnc);
    NMLP_RETURN_IF_FAILED(nmlp_model_check_tensor(job->package->model, view, NULL, err));
    const nmlp_view *gain = &job->package->model->layers[t->layer].mlp_norm;
    bool folded = job->package->fuse.norm_e12 > 0 && reads_x(matrix) && !job->package->fp8;
    if (folded) NMLP_RETURN_IF_FAILED(nmlp_model_check_tensor(job->package->model, gain, NULL, err));
    char *turned = nmlp_mem_new((size_t)(part.n * part.k), nmlp_dtype_bytes(dtype), err);
    float *norm = folded ? nmlp_mem_new((size_t)gain->shape[0], sizeof *norm, err) : NULL;
    nmlp_status st = turned && (norm || !folded) ? NMLP_OK : NMLP_E_NOMEM;
    if (norm) nmlp_to_f32(norm, gain->data, gain->dtype, (size_t)gain->shape[0]);
    if (st == NMLP_OK) st = transpose(turned, dtype, view, norm, part, err);
    if (st == NMLP_OK) nmlp_pack_write(pack, plane, packed, turned, nmlp_dtype_bytes(dtype));
    nmlp_mem_free(norm);
    nmlp_mem_free(turned);
    return st;
}

/* Scales of the outputs of a plane that a core has: output n in row n mod columns of the plane's column for its tile,
 * or all in one row. `out` is [rows, tiles * planes] or [1, n]. */
static void place_scales(const packing_job *job, const packed_tensor *t, const nmlp_emit_weight *w, int plane,
                         int64_t part_number, float *out) {
    const nmlp_package_options *o = job->package->options;
    const nmlp_layer *layer = &job->package->model->layers[t->layer];
    const nmlp_view *view = view_of(layer, w->matrix[plane]);
    matrix_part part = part_of(view, w->matrix[plane], layer->slices > 0, part_number, o->tp * o->lnc);
    const float *scales = (const float *)view->scales + part.n_first;
    int64_t width = w->tiles * w->n_planes;
    for (int64_t n = 0; n < part.n; n++)
        out[w->tiles ? n % w->columns * width + n / w->columns * w->n_planes + plane : n] = scales[n];
}

/* The norm's weights in fp32. */
static nmlp_status place_gain(const packing_job *job, const packed_tensor *t, const nmlp_emit_weight *w, float *out,
                              nmlp_err *err) {
    const nmlp_view *gain = &job->package->model->layers[t->layer].mlp_norm;
    NMLP_RETURN_IF_FAILED(nmlp_model_check_tensor(job->package->model, gain, NULL, err));
    float *wide = nmlp_mem_new((size_t)w->n, sizeof *wide, err);
    if (!wide) return NMLP_E_NOMEM;
    nmlp_to_f32(wide, gain->data, gain->dtype, (size_t)w->n);
    for (int64_t k = 0; k < w->n; k++) out[k % w->columns * w->tiles + k / w->columns] = wide[k];
    nmlp_mem_free(wide);
    return NMLP_OK;
}

/* The cores' packings, given one after the other, row by row. */
static nmlp_status put_side_by_side(nmlp_checkpoint_writer *writer, const char *packed, int64_t rows, int64_t cores,
                                    size_t bytes, nmlp_err *err) {
    if (cores == 1) return nmlp_checkpoint_put(writer, packed, bytes, err);
    size_t core_bytes = bytes / (size_t)cores, row_bytes = core_bytes / (size_t)rows;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t core = 0; core < cores; core++)
            NMLP_RETURN_IF_FAILED(nmlp_checkpoint_put(
                writer, packed + (size_t)core * core_bytes + (size_t)row * row_bytes, row_bytes, err));
    return NMLP_OK;
}

static nmlp_status put_tensor(void *ctx, size_t i, nmlp_checkpoint_writer *writer, nmlp_err *err) {
    const packing_job *job = ctx;
    const packed_tensor *t = &job->tensors[i];
    const nmlp_program *p = program_of(job->package, t->layer);
    size_t bytes = nmlp_tensor_spec_bytes(&job->specs[i]);
    nmlp_emit_weight w;
    nmlp_pack pack;
    bool known = nmlp_emit_weight_of(p, t->tensor, &w);
    if (!known || (!w.scales && !w.gain && !nmlp_pack_find(p, p->tensors[t->tensor].name, &pack)))
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "tensor %s has no known packing", t->name);
    int64_t cores = nmlp_package_is_split(job->package, &w) ? job->package->options->lnc : 1;
    char *packed = nmlp_mem_new(bytes, 1, err);
    if (!packed) return NMLP_E_NOMEM;
    nmlp_status st = NMLP_OK;
    for (int64_t core = 0; st == NMLP_OK && core < cores; core++) {
        char *own = packed + (size_t)core * (bytes / (size_t)cores);
        int64_t number = job->rank * job->package->options->lnc + core;
        for (int plane = 0; st == NMLP_OK && plane < w.n_planes; plane++) {
            if (w.gain)
                st = place_gain(job, t, &w, (float *)(void *)own, err);
            else if (w.scales)
                place_scales(job, t, &w, plane, number, (float *)(void *)own);
            else
                st = pack_plane(job, t, &pack, plane, w.matrix[plane], number, own, err);
        }
    }
    if (st == NMLP_OK) st = put_side_by_side(writer, packed, p->tensors[t->tensor].rows, cores, bytes, err);
    nmlp_mem_free(packed);
    return st;
}

static void add_tensor(packing_job *job, size_t layer, int tensor) {
    const nmlp_tensor *t = &program_of(job->package, layer)->tensors[tensor];
    packed_tensor *packed = &job->tensors[job->n];
    *packed = (packed_tensor){.layer = layer, .tensor = tensor};
    snprintf(packed->name, sizeof packed->name, "layers.%zu.%s", layer, t->name);
    nmlp_emit_weight w;
    bool known = nmlp_emit_weight_of(program_of(job->package, layer), tensor, &w);
    int64_t cores = known && nmlp_package_is_split(job->package, &w) ? job->package->options->lnc : 1;
    job->specs[job->n] = (nmlp_tensor_spec){
        .name = packed->name, .dtype = stored_dtype(t->dtype), .n_dims = 2, .shape = {t->rows, t->cols * cores}};
    job->specs[job->n].bare = t->dtype == NMLP_NC_FP8;
    job->package->rank_bytes[job->rank] += (double)nmlp_tensor_spec_bytes(&job->specs[job->n]);
    if (job->rank == 0 && known && !w.gain)
        for (int plane = 0; plane < w.n_planes; plane++) {
            const nmlp_view *view = view_of(&job->package->model->layers[layer], w.matrix[plane]);
            job->package->report->checkpoint_bytes +=
                (double)(view->shape[0] * (w.scales ? 1 : view->shape[1])) * (double)nmlp_nc_dtype_bytes(t->dtype);
        }
    job->n++;
}

/* One file whatever its size; the writer calls it model.safetensors. */
static nmlp_status write_file(const packing_job *job, const char *dir, nmlp_err *err) {
    char from[PATH_MAX_BYTES], to[PATH_MAX_BYTES], name[48];
    nmlp_checkpoint_source source = {.specs = job->specs,
                                     .n_specs = job->n,
                                     .put = put_tensor,
                                     .ctx = (void *)(uintptr_t)job,
                                     .max_shard_bytes = SIZE_MAX / 2,
                                     .progress = job->package->options->progress,
                                     .stage = "packing"};
    NMLP_RETURN_IF_FAILED(nmlp_checkpoint_write(dir, &source, err));
    NMLP_RETURN_IF_FAILED(nmlp_path_join(from, sizeof from, dir, "model.safetensors", err));
    snprintf(name, sizeof name, "rank_%lld.safetensors", (long long)job->rank);
    NMLP_RETURN_IF_FAILED(nmlp_path_join(to, sizeof to, dir, name, err));
    if (rename(from, to) != 0) return nmlp_fail(err, NMLP_E_IO, "%s: cannot be renamed to %s", from, name);
    return NMLP_OK;
}

static nmlp_status write_rank(nmlp_package *package, int64_t rank, const char *dir, nmlp_err *err) {
    enum { PER_LAYER_MAX = 16 };
    size_t n_layers = (size_t)package->model->config.n_layers;
    packing_job job = {.package = package, .rank = rank};
    nmlp_status st = NMLP_OK;
    job.tensors = nmlp_mem_new(n_layers * PER_LAYER_MAX, sizeof *job.tensors, err);
    job.specs = nmlp_mem_new(n_layers * PER_LAYER_MAX, sizeof *job.specs, err);
    if (!job.tensors || !job.specs) st = NMLP_E_NOMEM;
    for (int codes = 0; st == NMLP_OK && codes < 2; codes++) /* of single bytes last: all others are aligned */
        for (size_t l = 0; l < n_layers; l++) {
            const nmlp_program *p = program_of(package, l);
            for (size_t t = 0; t < p->n_tensors; t++)
                if (p->tensors[t].role == NMLP_ROLE_WEIGHT && (p->tensors[t].dtype == NMLP_NC_FP8) == (codes == 1))
                    add_tensor(&job, l, (int)t);
        }
    if (st == NMLP_OK) st = write_file(&job, dir, err);
    nmlp_mem_free(job.tensors);
    nmlp_mem_free(job.specs);
    return st;
}

nmlp_status nmlp_package_write_weights(nmlp_package *package, const char *dir, nmlp_err *err) {
    for (int64_t rank = 0; rank < package->options->tp; rank++) {
        NMLP_RETURN_IF_FAILED(write_rank(package, rank, dir, err));
        package->report->weight_bytes += package->rank_bytes[rank];
    }
    return NMLP_OK;
}
