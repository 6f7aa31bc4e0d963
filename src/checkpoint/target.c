#define _GNU_SOURCE /* statx */
#include "checkpoint/target.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dir_stage.h"
#include "base/file.h"
#include "checkpoint/checkpoint_write.h"
#include "checkpoint/transformers_files.h"

enum { PATH_MAX_BYTES = 4096, NAME_MAX_BYTES = 256 };

static bool is_same(const char *a, const char *b) {
    struct stat at_a, at_b;
    return stat(a, &at_a) == 0 && stat(b, &at_b) == 0 && at_a.st_dev == at_b.st_dev && at_a.st_ino == at_b.st_ino;
}

static bool has_suffix(const char *text, const char *suffix) {
    size_t n = strlen(text), m = strlen(suffix);
    return n >= m && strcmp(text + n - m, suffix) == 0;
}

/* Files that this program writes into a checkpoint. */
static bool is_known(const char *name) {
    static const char *const written[] = {
        "config.json",   "model.safetensors.index.json", "recovery.csv", "recovery.svg", "README.md", "optimize.html",
        "optimize.json", NMLP_DIR_STAGE_MARKER};
    for (size_t i = 0; i < sizeof written / sizeof written[0]; i++)
        if (strcmp(name, written[i]) == 0) return true;
    for (size_t i = 0; nmlp_transformers_files[i].name; i++)
        if (strcmp(name, nmlp_transformers_files[i].name) == 0) return true;
    for (size_t i = 0; nmlp_side_file_names[i]; i++)
        if (strcmp(name, nmlp_side_file_names[i]) == 0) return true;
    return strncmp(name, NMLP_FILE_TEMP_PREFIX, sizeof NMLP_FILE_TEMP_PREFIX - 1) == 0;
}

/* Weight files of this program say so at their front. */
static nmlp_status is_our_weights(bool *ours, const char *path, nmlp_err *err) {
    char front[8 + sizeof NMLP_CHECKPOINT_HEADER_FRONT];
    size_t len = sizeof NMLP_CHECKPOINT_HEADER_FRONT - 1;
    FILE *file = fopen(path, "rbe");
    if (!file) return nmlp_fail(err, NMLP_E_IO, "%s: cannot open: %s", path, strerror(errno));
    size_t n = fread(front, 1, 8 + len, file);
    fclose(file);
    *ours = n == 8 + len && memcmp(front + 8, NMLP_CHECKPOINT_HEADER_FRONT, len) == 0;
    return NMLP_OK;
}

struct contents {
    bool any;
    bool weights;                 /* of this program */
    char foreign[NAME_MAX_BYTES]; /* the first entry that it did not write */
};

static nmlp_status look_at(struct contents *found, const char *dir, const char *name, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return NMLP_OK;
    found->any = true;
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, dir, name, err));
    bool ours = is_known(name);
    if (has_suffix(name, ".safetensors")) NMLP_RETURN_IF_FAILED(is_our_weights(&ours, path, err));
    if (ours && !nmlp_file_is_dir(path)) {
        if (has_suffix(name, ".safetensors")) found->weights = true;
    } else if (!found->foreign[0]) {
        snprintf(found->foreign, sizeof found->foreign, "%s", name);
    }
    return NMLP_OK;
}

static nmlp_status survey(struct contents *found, const char *dir, nmlp_err *err) {
    const struct dirent *entry;
    nmlp_status st = NMLP_OK;
    DIR *open_dir = opendir(dir);
    *found = (struct contents){0};
    if (!open_dir) return nmlp_fail(err, NMLP_E_IO, "%s: cannot look inside: %s", dir, strerror(errno));
    while (st == NMLP_OK && (entry = readdir(open_dir))) st = look_at(found, dir, entry->d_name, err);
    closedir(open_dir);
    return st;
}

/* What lies in a work folder is ours, also half removed. */
static bool is_in_our_work(const char *dir) {
    char marker[PATH_MAX_BYTES];
    return snprintf(marker, sizeof marker, "%s/../" NMLP_DIR_STAGE_MARKER, dir) < (int)sizeof marker &&
           nmlp_file_exists(marker);
}

/* The directory appears by a rename beside it. */
static nmlp_status check_parent(const char *dir, nmlp_err *err) {
    char parent[PATH_MAX_BYTES];
    size_t len = strlen(dir);
    while (len > 1 && dir[len - 1] == '/') len--;
    if (len >= sizeof parent) return nmlp_fail(err, NMLP_E_ARG, "%s: the path is too long", dir);
    memcpy(parent, dir, len);
    parent[len] = '\0';
    char *slash = strrchr(parent, '/');
    if (slash) slash[slash == parent ? 1 : 0] = '\0';
    const char *where = slash ? parent : ".";
    if (!nmlp_file_is_dir(where)) {
        nmlp_fail(err, NMLP_E_IO, "%s: there is no directory %s to write it in", dir, where);
        nmlp_fail_hint(err, "create it, or choose another `out_dir`");
        return NMLP_E_IO;
    }
    if (access(where, W_OK | X_OK) != 0)
        return nmlp_fail(err, NMLP_E_IO, "%s: cannot write in %s: %s", dir, where, strerror(errno));
    return NMLP_OK;
}

static nmlp_status refuse_mount(const char *dir, nmlp_err *err) {
    struct statx info;
    if (statx(AT_FDCWD, dir, 0, STATX_BASIC_STATS, &info) != 0) return NMLP_OK;
    if (!(info.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) || !(info.stx_attributes & STATX_ATTR_MOUNT_ROOT))
        return NMLP_OK;
    nmlp_fail(err, NMLP_E_ARG, "%s: is a mount point, which cannot be replaced as a whole", dir);
    nmlp_fail_hint(err, "choose a directory inside it as `out_dir`");
    return NMLP_E_ARG;
}

nmlp_status nmlp_target_check(const char *dir, const char *source, nmlp_err *err) {
    struct contents found;
    if (source && is_same(dir, source)) {
        nmlp_fail(err, NMLP_E_ARG, "%s: is the model that is read; writing there would replace it", dir);
        nmlp_fail_hint(err, "choose another `out_dir`");
        return NMLP_E_ARG;
    }
    if (!nmlp_file_exists(dir)) return check_parent(dir, err);
    if (!nmlp_file_is_dir(dir)) return nmlp_fail(err, NMLP_E_IO, "%s: exists and is not a directory", dir);
    NMLP_RETURN_IF_FAILED(refuse_mount(dir, err));
    NMLP_RETURN_IF_FAILED(survey(&found, dir, err));
    if (!found.any || (found.weights && !found.foreign[0]) || is_in_our_work(dir)) return NMLP_OK;
    if (found.foreign[0])
        nmlp_fail(err, NMLP_E_ARG, "%s: would be replaced as a whole, with \"%s\", which this program did not write",
                  dir, found.foreign);
    else
        nmlp_fail(err, NMLP_E_ARG, "%s: would be replaced as a whole, and holds no weights of this program", dir);
    nmlp_fail_hint(err, "choose a new `out_dir`, or empty the old one");
    return NMLP_E_ARG;
}
