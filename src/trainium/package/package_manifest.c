#include <inttypes.h>
#include <stdio.h>

#include "trainium/neuron/pack.h"
#include "trainium/package/package_internal.h"

static void put_packing(nmlp_json_writer *w, const nmlp_package *package, const nmlp_program *p) {
    nmlp_json_begin_array(w, "packing");
    for (size_t t = 0; t < p->n_tensors; t++) {
        nmlp_emit_weight weight;
        nmlp_pack pack;
        if (p->tensors[t].role != NMLP_ROLE_WEIGHT || !nmlp_emit_weight_of(p, (int)t, &weight)) continue;
        if (!weight.scales && !weight.gain && !nmlp_pack_find(p, p->tensors[t].name, &pack)) continue;
        nmlp_json_begin_object(w, NULL);
        nmlp_json_put_string(w, "tensor", p->tensors[t].name);
        nmlp_json_begin_array(w, "shape");
        nmlp_json_put_int(w, NULL, p->tensors[t].rows);
        int64_t cores = nmlp_package_is_split(package, &weight) ? package->options->lnc : 1;
        nmlp_json_put_int(w, NULL, p->tensors[t].cols * cores);
        nmlp_json_end_array(w);
        nmlp_json_put_int(w, "cores", cores);
        nmlp_json_put_string(w, "dtype", nmlp_nc_dtype_name(p->tensors[t].dtype));
        if (weight.scales) { /* of the outputs: in one row, or the p-th of each tile of columns in row p */
            nmlp_json_put_bool(w, "scales", true);
            nmlp_json_put_int(w, "columns", weight.tiles ? weight.columns : weight.n);
        } else if (weight.gain) { /* of the norm: the p-th of each tile in row p */
            nmlp_json_put_bool(w, "norm", true);
            nmlp_json_put_int(w, "columns", weight.columns);
        } else {
            nmlp_json_put_int(w, "chunk_tiles", weight.chunk_tiles);
            nmlp_json_put_int(w, "columns", weight.columns);
        }
        nmlp_json_begin_array(w, "planes");
        for (int i = 0; i < weight.n_planes; i++) {
            nmlp_json_begin_object(w, NULL);
            nmlp_json_put_string(w, "matrix", weight.matrix[i]);
            nmlp_json_put_int(w, "inputs", weight.k[i]);
            nmlp_json_put_int(w, "outputs", weight.n);
            nmlp_json_put_int(w, "tile_rows", weight.rows[i]);
            nmlp_json_end_object(w);
        }
        nmlp_json_end_array(w);
        nmlp_json_end_object(w);
    }
    nmlp_json_end_array(w);
}

static void put_forms(nmlp_json_writer *w, const nmlp_package *p) {
    nmlp_json_begin_array(w, "forms");
    for (size_t f = 0; f < p->forms.n; f++) {
        const nmlp_mlp_form *form = &p->forms.list[f];
        nmlp_json_begin_object(w, NULL);
        nmlp_json_put_int(w, "id", (int64_t)f);
        nmlp_json_put_int(w, "gate", form->ranks.gate);
        nmlp_json_put_int(w, "up", form->ranks.up);
        nmlp_json_put_int(w, "down", form->ranks.down);
        nmlp_json_put_bool(w, "shared", form->ranks.shared);
        nmlp_json_put_int(w, "layers", form->n_layers);
        put_packing(w, p, p->plans[f].program[0]);
        nmlp_json_end_object(w);
    }
    nmlp_json_end_array(w);
}

static void put_kernel(nmlp_json_writer *w, const nmlp_package *p, size_t f, int b) {
    char id[NMLP_PACKAGE_ID_MAX], file[NMLP_PACKAGE_ID_MAX + 16];
    const nmlp_program *program = p->plans[f].program[b];
    nmlp_package_kernel_id(id, f, p->options->buckets[b]);
    snprintf(file, sizeof file, "kernels/%s.py", id);
    nmlp_json_begin_object(w, NULL);
    nmlp_json_put_string(w, "id", id);
    nmlp_json_put_string(w, "file", file);
    nmlp_json_put_int(w, "form", (int64_t)f);
    nmlp_json_put_int(w, "rows", p->options->buckets[b]);
    nmlp_json_begin_array(w, "arguments");
    for (size_t t = 0; t < program->n_tensors; t++)
        if (program->tensors[t].role == NMLP_ROLE_INPUT || program->tensors[t].role == NMLP_ROLE_WEIGHT)
            nmlp_json_put_string(w, NULL, program->tensors[t].name);
    nmlp_json_end_array(w);
    nmlp_str tiling;
    nmlp_str_init(&tiling);
    nmlp_tiling_print(&p->plans[f].tiling[b], &tiling);
    for (char *c = tiling.data; c && *c; c++)
        if (*c == ',') *c = ' '; /* a cell of measured.csv */
    nmlp_json_put_string(w, "tiling", nmlp_str_text(&tiling));
    w->out->failed |= tiling.failed;
    nmlp_str_fini(&tiling);
    nmlp_json_put_int(w, "instructions", p->plans[f].instructions[b]);
    nmlp_json_put_number(w, "simulated_us", p->plans[f].cost[b].latency_us);
    nmlp_json_put_number(w, "simulated_us_own_packing", p->plans[f].free_us[b]);
    nmlp_json_end_object(w);
}

static void put_target(nmlp_json_writer *w, const nmlp_package_options *o, bool fp8) {
    const nmlp_machine *m = o->planner->machine;
    const char *from, *to;
    char hash[24];
    snprintf(hash, sizeof hash, "%016" PRIx64, nmlp_machine_hash(m));
    nmlp_dialect_sdk(o->dialect, &from, &to);
    nmlp_json_put_string(w, "target", m->name);
    nmlp_json_put_string(w, "machine_hash", hash);
    nmlp_json_put_string(w, "dialect", nmlp_dialect_name(o->dialect));
    nmlp_json_begin_object(w, "sdk");
    nmlp_json_put_string(w, "from", from);
    nmlp_json_put_string(w, "to", to);
    nmlp_json_end_object(w);
    nmlp_json_put_string(w, "dtype", nmlp_nc_dtype_name(o->dtype));
    nmlp_json_put_string(w, "weights_dtype", fp8 ? "fp8" : nmlp_nc_dtype_name(o->dtype));
    nmlp_json_put_int(w, "tp", o->tp);
    nmlp_json_put_int(w, "lnc", o->lnc);
    nmlp_json_begin_array(w, "buckets");
    for (int b = 0; b < o->n_buckets; b++) nmlp_json_put_int(w, NULL, o->buckets[b]);
    nmlp_json_end_array(w);
}

void nmlp_package_put_manifest(const nmlp_package *p, nmlp_str *out) {
    nmlp_json_writer w;
    nmlp_json_writer_init(&w, out);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_put_string(&w, "format", "neuronmlp-trainium-package");
    nmlp_json_put_int(&w, "version", 5);
    nmlp_json_put_string(&w, "model", p->options->model_name);
    put_target(&w, p->options, p->fp8);
    nmlp_json_put_int(&w, "hidden", p->model->config.hidden);
    nmlp_json_put_int(&w, "intermediate", p->model->config.intermediate);
    nmlp_json_put_int(&w, "slices", p->model->config.slices > 0 ? p->model->config.slices : 1);
    nmlp_json_begin_object(&w, "fused"); /* of the kernels: epsilon of the norm of x, its weights in the matrices */
    if (p->fuse.norm_e12 > 0)
        nmlp_json_put_number(&w, "norm_eps", (double)p->fuse.norm_e12 * 1e-12);
    else
        nmlp_json_put_null(&w, "norm_eps");
    nmlp_json_put_bool(&w, "residual", p->fuse.residual);
    nmlp_json_end_object(&w);
    put_forms(&w, p);
    nmlp_json_begin_array(&w, "kernels");
    for (size_t f = 0; f < p->forms.n; f++)
        for (int b = 0; b < p->options->n_buckets; b++) put_kernel(&w, p, f, b);
    nmlp_json_end_array(&w);
    nmlp_json_begin_array(&w, "layers");
    for (int64_t l = 0; l < p->model->config.n_layers; l++) nmlp_json_put_int(&w, NULL, (int64_t)p->forms.of_layer[l]);
    nmlp_json_end_array(&w);
    nmlp_json_begin_array(&w, "weights");
    for (int64_t rank = 0; rank < p->options->tp; rank++) {
        char file[48];
        snprintf(file, sizeof file, "weights/rank_%lld.safetensors", (long long)rank);
        nmlp_json_begin_object(&w, NULL);
        nmlp_json_put_string(&w, "file", file);
        nmlp_json_put_number(&w, "bytes", p->rank_bytes[rank]);
        nmlp_json_end_object(&w);
    }
    nmlp_json_end_array(&w);
    nmlp_json_end_object(&w);
    nmlp_str_putc(out, '\n');
}
