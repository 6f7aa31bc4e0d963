/* What a package holds besides kernels and packed weights: the host's scripts, the other weights of the checkpoint, and
 * the logits the host compares its own with. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/checkpoint_write.h"
#include "model/expand.h"
#include "trainium/package/package_internal.h"

enum { PATH_MAX_BYTES = 4096, PROBES_MAX = 64 };

nmlp_status nmlp_package_make_folder(char *path, size_t path_bytes, const char *dir, const char *name, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, path_bytes, dir, name, err));
    if (mkdir(path, 0777) == 0 || errno == EEXIST) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_IO, "%s: cannot create the folder: %s", path, strerror(errno));
}

static nmlp_status write_host_file(const nmlp_package_host_file *file, const char *dir, nmlp_err *err) {
    char path[PATH_MAX_BYTES], folder[64];
    const char *slash = strchr(file->path, '/');
    if (slash) {
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - file->path), file->path);
        NMLP_RETURN_IF_FAILED(nmlp_package_make_folder(path, sizeof path, dir, folder, err));
    }
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, dir, file->path, err));
    NMLP_RETURN_IF_FAILED(nmlp_file_write_text(path, file->text, strlen(file->text), err));
    const char *dot = strrchr(file->path, '.');
    if (dot && strcmp(dot, ".sh") == 0 && chmod(path, 0755) != 0)
        return nmlp_fail(err, NMLP_E_IO, "%s: cannot be made executable: %s", path, strerror(errno));
    return NMLP_OK;
}

/* ---- the weights that are no MLP's ---- */

typedef struct other_weights {
    const nmlp_view **views;
    nmlp_tensor_spec *specs;
    size_t n;
} other_weights;

static nmlp_status put_view(void *ctx, size_t i, nmlp_checkpoint_writer *writer, nmlp_err *err) {
    const other_weights *o = ctx;
    return nmlp_model_put_plain(writer, o->views[i], err);
}

static void list_other_weights(other_weights *o, const nmlp_checkpoint *checkpoint) {
    for (size_t i = 0; i < checkpoint->n_tensors; i++) {
        const nmlp_named_tensor *t = &checkpoint->tensors[i];
        if (strstr(t->name, ".mlp.")) continue;
        o->specs[o->n] = nmlp_tensor_spec_of(t->name, &t->view);
        o->specs[o->n].dtype = nmlp_model_plain_dtype(t->view.dtype);
        o->views[o->n++] = &t->view;
    }
}

static nmlp_status write_checkpoint(const nmlp_package *p, const char *dir, nmlp_err *err) {
    const nmlp_checkpoint *c = &p->model->checkpoint;
    other_weights o = {.views = nmlp_mem_new(c->n_tensors, sizeof *o.views, err),
                       .specs = nmlp_mem_new(c->n_tensors, sizeof *o.specs, err)};
    nmlp_status st = o.views && o.specs ? NMLP_OK : NMLP_E_NOMEM;
    if (st == NMLP_OK) {
        list_other_weights(&o, c);
        nmlp_checkpoint_source source = {.specs = o.specs,
                                         .n_specs = o.n,
                                         .put = put_view,
                                         .ctx = &o,
                                         .progress = p->options->progress,
                                         .stage = "copying"};
        st = nmlp_checkpoint_write(dir, &source, err);
    }
    if (st == NMLP_OK) st = nmlp_config_save(&p->model->config, NULL, o.specs, o.n, dir, err);
    if (st == NMLP_OK) st = nmlp_model_copy_side_files(c->dir, dir, err);
    nmlp_mem_free(o.views);
    nmlp_mem_free(o.specs);
    return st;
}

/* ---- expected logits ---- */

/* Logits of a whole vocabulary would be megabytes of text: evenly spaced tokens are kept, and every best one. */
static void put_expected(nmlp_json_writer *w, const nmlp_package_expected *e) {
    int64_t n_probes = e->vocab < PROBES_MAX ? e->vocab : PROBES_MAX;
    nmlp_json_begin_object(w, NULL);
    nmlp_json_begin_array(w, "ids");
    for (int64_t i = 0; i < e->n; i++) nmlp_json_put_int(w, NULL, e->ids[i]);
    nmlp_json_end_array(w);
    nmlp_json_begin_array(w, "argmax");
    for (int64_t i = 0; i < e->n; i++) {
        const float *row = e->logits + i * e->vocab;
        int64_t best = 0;
        for (int64_t v = 1; v < e->vocab; v++)
            if (row[v] > row[best]) best = v;
        nmlp_json_put_int(w, NULL, best);
    }
    nmlp_json_end_array(w);
    nmlp_json_begin_array(w, "probes");
    for (int64_t i = 0; i < n_probes; i++) nmlp_json_put_int(w, NULL, i * e->vocab / n_probes);
    nmlp_json_end_array(w);
    nmlp_json_begin_array(w, "logits"); /* [positions, probes] */
    for (int64_t i = 0; i < e->n; i++) {
        nmlp_json_begin_array(w, NULL);
        for (int64_t k = 0; k < n_probes; k++)
            nmlp_json_put_number(w, NULL, (double)e->logits[i * e->vocab + k * e->vocab / n_probes]);
        nmlp_json_end_array(w);
    }
    nmlp_json_end_array(w);
    nmlp_json_end_object(w);
}

static nmlp_status write_expected(const nmlp_package_expected *expected, const char *dir, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    nmlp_json_writer w;
    nmlp_str text;
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, dir, "expected.json", err));
    nmlp_str_init(&text);
    nmlp_json_writer_init(&w, &text);
    put_expected(&w, expected);
    nmlp_str_putc(&text, '\n');
    nmlp_status st = nmlp_str_status(&text, err);
    if (st == NMLP_OK) st = nmlp_file_write_text(path, nmlp_str_text(&text), text.len, err);
    nmlp_str_fini(&text);
    return st;
}

nmlp_status nmlp_package_write_host(const nmlp_package *p, const char *dir, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    for (const nmlp_package_host_file *file = nmlp_package_host_files; file->path; file++)
        NMLP_RETURN_IF_FAILED(write_host_file(file, dir, err));
    NMLP_RETURN_IF_FAILED(nmlp_package_make_folder(path, sizeof path, dir, "checkpoint", err));
    NMLP_RETURN_IF_FAILED(write_checkpoint(p, path, err));
    return p->options->expected ? write_expected(p->options->expected, dir, err) : NMLP_OK;
}
