#include "checkpoint/target.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"

enum { PATH_MAX_BYTES = 4096, NAME_MAX_BYTES = 256 };

static bool is_same(const char *a, const char *b) {
    struct stat at_a, at_b;
    return stat(a, &at_a) == 0 && stat(b, &at_b) == 0 && at_a.st_dev == at_b.st_dev && at_a.st_ino == at_b.st_ino;
}

struct contents {
    bool any;
    bool config;
    char folder[NAME_MAX_BYTES]; /* the first one */
};

static void look_at(struct contents *found, const char *dir, const char *name, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return;
    found->any = true;
    if (strcmp(name, "config.json") == 0) found->config = true;
    if (!found->folder[0] && nmlp_path_join(path, sizeof path, dir, name, err) == NMLP_OK && nmlp_file_is_dir(path))
        snprintf(found->folder, sizeof found->folder, "%s", name);
}

static nmlp_status survey(struct contents *found, const char *dir, nmlp_err *err) {
    const struct dirent *entry;
    DIR *open_dir = opendir(dir);
    *found = (struct contents){0};
    if (!open_dir) return nmlp_fail(err, NMLP_E_IO, "%s: cannot look inside: %s", dir, strerror(errno));
    while ((entry = readdir(open_dir))) look_at(found, dir, entry->d_name, err);
    closedir(open_dir);
    return NMLP_OK;
}

nmlp_status nmlp_target_check(const char *dir, const char *source, nmlp_err *err) {
    struct contents found;
    if (source && is_same(dir, source)) {
        nmlp_fail(err, NMLP_E_ARG, "%s: is the model that is read; writing there would replace it", dir);
        nmlp_fail_hint(err, "choose another `out_dir`");
        return NMLP_E_ARG;
    }
    if (!nmlp_file_exists(dir)) return NMLP_OK;
    if (!nmlp_file_is_dir(dir)) return nmlp_fail(err, NMLP_E_IO, "%s: exists and is not a directory", dir);
    NMLP_RETURN_IF_FAILED(survey(&found, dir, err));
    if (!found.any || (found.config && !found.folder[0])) return NMLP_OK;
    if (found.config)
        nmlp_fail(err, NMLP_E_ARG, "%s: would be replaced as a whole, with its folder \"%s\"", dir, found.folder);
    else
        nmlp_fail(err, NMLP_E_ARG, "%s: would be replaced as a whole, and holds something else than a checkpoint", dir);
    nmlp_fail_hint(err, "choose a new `out_dir`, or empty the old one");
    return NMLP_E_ARG;
}
