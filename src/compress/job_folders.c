#include "compress/job_folders.h"

#include <string.h>

#include "base/str.h"

static nmlp_status open_work(nmlp_job_folders *f, const char *out_dir, const char *work_dir, bool resume,
                             nmlp_err *err) {
    nmlp_str work;
    nmlp_str_init(&work);
    nmlp_str_puts(&work, work_dir ? work_dir : out_dir);
    while (work.len > 1 && work.data[work.len - 1] == '/') work.data[--work.len] = '\0';
    if (!work_dir) nmlp_str_puts(&work, ".work");
    nmlp_status st = nmlp_str_status(&work, err);
    if (st == NMLP_OK && strncmp(nmlp_str_text(&work), out_dir, work.len) == 0 &&
        strspn(out_dir + work.len, "/") == strlen(out_dir + work.len))
        st = nmlp_fail_field(err, NMLP_E_ARG, "work_dir", "is %s; it must be another directory than the output",
                             work_dir);
    if (st == NMLP_OK && nmlp_group_leads(f->group))
        st = nmlp_dir_stage_open(&f->work, nmlp_str_text(&work), resume, err);
    if (st == NMLP_OK) st = nmlp_group_meet(f->group, err);
    if (st == NMLP_OK && !nmlp_group_leads(f->group)) st = nmlp_dir_stage_visit(&f->work, nmlp_str_text(&work), err);
    nmlp_str_fini(&work);
    return st;
}

nmlp_status nmlp_job_folders_open(nmlp_job_folders *f, const char *out_dir, const char *work_dir, bool resume,
                                  nmlp_err *err) {
    if (out_dir && nmlp_group_leads(f->group))
        NMLP_RETURN_IF_FAILED(nmlp_dir_stage_open(&f->output, out_dir, false, err));
    return open_work(f, out_dir ? out_dir : "", work_dir, resume, err);
}

nmlp_status nmlp_job_folders_close(nmlp_job_folders *f, bool keep_work, nmlp_status st, nmlp_err *err) {
    if (!nmlp_group_leads(f->group)) {
        nmlp_dir_stage_keep(&f->work);
        return st;
    }
    bool unfinished = st != NMLP_OK && nmlp_dir_stage_has_files(&f->work);
    if (unfinished && err && !err->hint[0])
        nmlp_fail_hint(err, "what is done is kept in %s; the same command with `resume` goes on from there",
                       f->work.temp_path);
    if (unfinished || (st == NMLP_OK && keep_work)) nmlp_dir_stage_keep(&f->work);
    if (st == NMLP_OK) st = nmlp_dir_stage_discard(&f->work, err);
    nmlp_dir_stage_abort(&f->work);
    nmlp_dir_stage_abort(&f->output);
    return st;
}
