#include "cli/optimize_record.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"

enum { PATH_BYTES = 4096 };
static const char file_name[] = "optimize.json";
static const char format_name[] = "neuronmlp-optimize";

/* ---- writing ---- */

static void put_points(nmlp_json_writer *w, const nmlp_optimization *r) {
    nmlp_json_begin_array(w, "points");
    for (int i = 0; i < r->n_points; i++) {
        const nmlp_optimized_point *p = &r->points[i];
        nmlp_json_begin_object(w, NULL);
        nmlp_json_put_string(w, "name", p->name);
        nmlp_json_put_number(w, "loss", p->loss);
        nmlp_json_put_number(w, "loss_error", p->loss_error);
        nmlp_json_put_number(w, "kl", p->kl);
        nmlp_json_put_number(w, "ms", p->ms);
        nmlp_json_put_number(w, "speedup", r->points[0].ms / p->ms);
        if (p->speedup_high > 0) {
            nmlp_json_put_number(w, "speedup_low", p->speedup_low);
            nmlp_json_put_number(w, "speedup_high", p->speedup_high);
        }
        nmlp_json_put_int(w, "bytes", p->bytes);
        nmlp_json_put_bool(w, "within", p->within);
        nmlp_json_put_bool(w, "refused", p->refused);
        nmlp_json_put_bool(w, "chosen", i == r->chosen);
        nmlp_json_put_bool(w, "ranks", p->ranks);
        nmlp_json_put_bool(w, "bits", p->bits);
        nmlp_json_put_bool(w, "trained", p->trained);
        nmlp_json_end_object(w);
    }
    nmlp_json_end_array(w);
    nmlp_json_begin_array(w, "frontier");
    for (int i = 0; i < r->n_frontier; i++) {
        nmlp_json_begin_object(w, NULL);
        nmlp_json_put_number(w, "loss", r->frontier[i].loss);
        nmlp_json_put_number(w, "ms", r->frontier[i].ms);
        nmlp_json_put_number(w, "bytes", r->frontier[i].bytes);
        nmlp_json_end_object(w);
    }
    nmlp_json_end_array(w);
}

void nmlp_optimize_record_put(nmlp_json_writer *w, const nmlp_optimization *r) {
    const nmlp_optimized_point *p = &r->points[r->chosen];
    char workload[32];
    snprintf(workload, sizeof workload, r->workload.prompt ? "%s" : "%s=%lld", r->workload.name,
             (long long)r->workload.batch);
    nmlp_json_put_string(w, "target", r->target);
    nmlp_json_put_bool(w, "simulated", r->simulated);
    nmlp_json_put_string(w, "workload", workload);
    nmlp_json_put_number(w, "max_loss", r->bound);
    nmlp_json_put_string(w, "verdict", nmlp_verdict_text(r->verdict));
    nmlp_json_put_string(w, "chosen", p->name);
    nmlp_json_put_string(w, "fastest", r->points[r->fastest].name);
    nmlp_json_put_int(w, "repeats", r->n_repeats);
    nmlp_json_put_number(w, "ms_before", r->points[0].ms);
    nmlp_json_put_number(w, "ms_after", p->ms);
    nmlp_json_put_number(w, "speedup", r->points[0].ms / p->ms);
    nmlp_json_put_int(w, "bytes_before", r->points[0].bytes);
    nmlp_json_put_int(w, "bytes_after", p->bytes);
    nmlp_json_put_number(w, "loss", p->loss);
    nmlp_json_put_number(w, "loss_error", p->loss_error);
    nmlp_json_begin_object(w, "verified");
    nmlp_json_put_int(w, "tokens", r->verified.n_scored);
    nmlp_json_put_number(w, "loss", r->verified.nll - r->verified.nll_before);
    nmlp_json_put_number(w, "loss_error", r->verified.rise_error);
    nmlp_json_put_number(w, "kl", r->verified.kl);
    nmlp_json_put_int(w, "stepped_back", r->n_stepped_back);
    nmlp_json_end_object(w);
    put_points(w, r);
}

nmlp_status nmlp_optimize_record_write(const char *dir, const nmlp_optimization *r, const char *command,
                                       nmlp_err *err) {
    char path[PATH_BYTES];
    nmlp_json_writer w;
    nmlp_str text;
    nmlp_status st = NMLP_OK;
    nmlp_str_init(&text);
    nmlp_json_writer_init(&w, &text);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_put_string(&w, "format", format_name);
    nmlp_json_put_string(&w, "made_by", command);
    nmlp_optimize_record_put(&w, r);
    nmlp_json_end_object(&w);
    nmlp_str_putc(&text, '\n');
    NMLP_TRY(nmlp_str_status(&text, err));
    NMLP_TRY(nmlp_path_join(path, sizeof path, dir, file_name, err));
    NMLP_TRY(nmlp_file_write_text(path, nmlp_str_text(&text), text.len, err));
out:
    nmlp_str_fini(&text);
    return st;
}

/* ---- reading ---- */

bool nmlp_optimize_record_is_there(const char *dir) {
    char path[PATH_BYTES];
    return nmlp_path_join(path, sizeof path, dir, file_name, NULL) == NMLP_OK && nmlp_file_exists(path);
}

static nmlp_status read_point(const nmlp_json_doc *doc, const nmlp_json *from, nmlp_optimization *r, nmlp_err *err) {
    const char *name;
    bool chosen = false;
    if (r->n_points == NMLP_OPTIMIZED_POINTS_MAX)
        return nmlp_fail(err, NMLP_E_LIMIT, "%s: more than %d points", file_name, NMLP_OPTIMIZED_POINTS_MAX);
    nmlp_optimized_point *p = &r->points[r->n_points];
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, from, "name", &name, err));
    snprintf(p->name, sizeof p->name, "%s", name);
    NMLP_RETURN_IF_FAILED(nmlp_json_need_number(doc, from, "loss", &p->loss, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_number(doc, from, "loss_error", &p->loss_error, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_number(doc, from, "kl", &p->kl, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_number(doc, from, "ms", &p->ms, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_int(doc, from, "bytes", 0, INT64_MAX / 2, &p->bytes, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, from, "within", &p->within, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, from, "refused", &p->refused, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, from, "speedup_low", &p->speedup_low, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, from, "speedup_high", &p->speedup_high, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, from, "chosen", &chosen, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, from, "ranks", &p->ranks, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, from, "bits", &p->bits, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, from, "trained", &p->trained, err));
    if (!(p->ms > 0)) return nmlp_fail(err, NMLP_E_FORMAT, "%s: \"ms\" of \"%s\" is not above 0", file_name, p->name);
    if (chosen) r->chosen = r->n_points;
    r->n_points++;
    return NMLP_OK;
}

static nmlp_status read_frontier(const nmlp_json_doc *doc, nmlp_optimization *r, nmlp_err *err) {
    for (const nmlp_json *at = nmlp_json_first(nmlp_json_get(doc->root, "frontier"));
         at && r->n_frontier < NMLP_FRONTIER_MAX; at = nmlp_json_next(at)) {
        int i = r->n_frontier++;
        NMLP_RETURN_IF_FAILED(nmlp_json_need_number(doc, at, "loss", &r->frontier[i].loss, err));
        NMLP_RETURN_IF_FAILED(nmlp_json_need_number(doc, at, "ms", &r->frontier[i].ms, err));
        NMLP_RETURN_IF_FAILED(nmlp_json_need_number(doc, at, "bytes", &r->frontier[i].bytes, err));
    }
    return NMLP_OK;
}

static nmlp_status read_verdict(const char *text, nmlp_verdict *verdict, nmlp_err *err) {
    for (int i = NMLP_VERDICT_DENSE; i <= NMLP_VERDICT_MIXED; i++) {
        *verdict = (nmlp_verdict)i;
        if (strcmp(text, nmlp_verdict_text(*verdict)) == 0) return NMLP_OK;
    }
    return nmlp_fail(err, NMLP_E_FORMAT, "%s: \"verdict\" is \"%.40s\", which is none of ours", file_name, text);
}

static nmlp_status read_result(nmlp_optimize_record *record, nmlp_err *err) {
    const nmlp_json_doc *doc = &record->doc;
    nmlp_optimization *r = &record->result;
    const nmlp_json *verified;
    const char *workload, *verdict;
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, doc->root, "made_by", &record->command, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, doc->root, "target", &r->target, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, doc->root, "workload", &workload, err));
    NMLP_RETURN_IF_FAILED(nmlp_workload_parse(&r->workload, workload, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, doc->root, "verdict", &verdict, err));
    NMLP_RETURN_IF_FAILED(read_verdict(verdict, &r->verdict, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_number(doc, doc->root, "max_loss", &r->bound, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, doc->root, "simulated", &r->simulated, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_object(doc, doc->root, "verified", &verified, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_int(doc, verified, "tokens", 0, INT64_MAX / 2, &r->verified.n_scored, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_number(doc, verified, "loss", &r->verified.nll, err));
    for (const nmlp_json *p = nmlp_json_first(nmlp_json_get(doc->root, "points")); p; p = nmlp_json_next(p))
        NMLP_RETURN_IF_FAILED(read_point(doc, p, r, err));
    if (r->n_points == 0) return nmlp_fail(err, NMLP_E_FORMAT, "%s: \"points\" has none", file_name);
    return read_frontier(doc, r, err);
}

nmlp_status nmlp_optimize_record_load(nmlp_optimize_record *record, const char *dir, nmlp_err *err) {
    char path[PATH_BYTES];
    *record = (nmlp_optimize_record){0};
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, dir, file_name, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_load(&record->doc, path, err));
    nmlp_status st = read_result(record, err);
    if (st != NMLP_OK) nmlp_fail_context(err, "%s", path);
    return st;
}

void nmlp_optimize_record_fini(nmlp_optimize_record *record) {
    nmlp_json_free(&record->doc);
    *record = (nmlp_optimize_record){0};
}
