#include "trainium/plan/plan_cache.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"

enum { CACHE_VERSION = 4, CACHE_MAX_BYTES = 64 << 20, TEXT_MAX = 256 };

static void put_candidate(nmlp_str *line, const nmlp_plan_candidate *candidate) {
    nmlp_str_printf(line, " %s ", candidate->kernel ? candidate->kernel : "-");
    if (candidate->kernel && candidate->tiling.n > 0)
        nmlp_tiling_print(&candidate->tiling, line);
    else
        nmlp_str_puts(line, "-");
}

static void put_key(nmlp_str *line, const nmlp_machine *m, nmlp_plan_op op, const nmlp_kernel_request *rq) {
    char shape[NMLP_KERNEL_SHAPE_TEXT_MAX];
    nmlp_kernel_shape_print(shape, rq);
    nmlp_str_printf(line, "%016llx %s %s %s ", (unsigned long long)(nmlp_machine_hash(m) + CACHE_VERSION),
                    nmlp_plan_op_name(op), nmlp_nc_dtype_name(rq->dtype), shape);
    if (rq->tiling && rq->tiling->n > 0)
        nmlp_tiling_print(rq->tiling, line);
    else
        nmlp_str_puts(line, "-");
}

static bool get_candidate(nmlp_plan_candidate *candidate, const char *kernel, const char *tiling) {
    nmlp_err ignored = {0};
    *candidate = (nmlp_plan_candidate){0};
    if (strcmp(kernel, "-") == 0) return true;
    const nmlp_kernel *k = nmlp_kernel_find(kernel, &ignored);
    if (!k) return false;
    candidate->kernel = k->name;
    return strcmp(tiling, "-") == 0 || nmlp_tiling_parse(&candidate->tiling, tiling, &ignored) == NMLP_OK;
}

static bool parse_line(nmlp_kernel_plan *plan, const char *rest) {
    char text[4][TEXT_MAX];
    if (sscanf(rest, " %255s %255s %255s %255s", text[0], text[1], text[2], text[3]) != 4) return false;
    return get_candidate(&plan->winner, text[0], text[1]) && plan->winner.kernel &&
           get_candidate(&plan->runner_up, text[2], text[3]);
}

/* Reads what is there; a file that holds anything but lines of a cache is somebody else's, and nothing is added to it.
 */
static nmlp_status read_cache(nmlp_str *file, const char *path, nmlp_err *err) {
    enum { HASH_DIGITS = 16 };
    if (!nmlp_file_exists(path)) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_file_read(file, path, CACHE_MAX_BYTES, err));
    const char *text = nmlp_str_text(file);
    text += strspn(text, "\n");
    if ((!*text && strlen(nmlp_str_text(file)) == file->len) ||
        (strspn(text, "0123456789abcdef") == HASH_DIGITS && text[HASH_DIGITS] == ' '))
        return NMLP_OK;
    nmlp_fail(err, NMLP_E_FORMAT, "%s: is not a plan cache: it begins with \"%.20s\"", path, text);
    nmlp_fail_hint(err, "name a file that does not exist yet");
    return NMLP_E_FORMAT;
}

nmlp_status nmlp_plan_cache_find(const char *path, nmlp_kernel_plan *plan, const nmlp_machine *m, nmlp_plan_op op,
                                 const nmlp_kernel_request *rq, nmlp_err *err) {
    nmlp_str file, key;
    nmlp_status st = NMLP_OK;
    nmlp_str_init(&file);
    nmlp_str_init(&key);
    put_key(&key, m, op, rq);
    NMLP_TRY(nmlp_str_status(&key, err));
    NMLP_TRY(read_cache(&file, path, err));
    for (const char *line = nmlp_str_text(&file); line && *line && !plan->cached;
         line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncmp(line, nmlp_str_text(&key), key.len) == 0 && line[key.len] == ' ')
            plan->cached = parse_line(plan, line + key.len);
out:
    nmlp_str_fini(&file);
    nmlp_str_fini(&key);
    return st;
}

nmlp_status nmlp_plan_cache_add(const char *path, const nmlp_kernel_plan *plan, const nmlp_machine *m, nmlp_plan_op op,
                                const nmlp_kernel_request *rq, nmlp_err *err) {
    nmlp_str file;
    nmlp_status st = NMLP_OK;
    nmlp_str_init(&file);
    NMLP_TRY(read_cache(&file, path, err));
    put_key(&file, m, op, rq);
    put_candidate(&file, &plan->winner);
    put_candidate(&file, &plan->runner_up);
    nmlp_str_putc(&file, '\n');
    NMLP_TRY(nmlp_str_status(&file, err));
    NMLP_TRY(nmlp_file_write_text(path, nmlp_str_text(&file), file.len, err));
out:
    nmlp_str_fini(&file);
    return st;
}
