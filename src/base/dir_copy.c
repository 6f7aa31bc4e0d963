#define _POSIX_C_SOURCE 200809L
#include "base/dir_copy.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dir_stage.h"
#include "base/file.h"

enum { PATH_MAX_BYTES = 4096 };

static nmlp_status copy_file(const char *from, const char *to, nmlp_err *err) {
    nmlp_file_map map;
    nmlp_file_writer writer;
    NMLP_RETURN_IF_FAILED(nmlp_file_map_open(&map, from, err));
    nmlp_status st = nmlp_file_writer_open(&writer, to, err);
    if (st == NMLP_OK) {
        st = nmlp_file_writer_write(&writer, map.data, map.bytes, err);
        if (st == NMLP_OK)
            st = nmlp_file_writer_commit(&writer, err);
        else
            nmlp_file_writer_abort(&writer);
    }
    nmlp_file_map_close(&map);
    return st;
}

static nmlp_status copy_entry(const char *from_dir, const char *to_dir, const char *name, bool linked, nmlp_err *err) {
    char from[PATH_MAX_BYTES], to[PATH_MAX_BYTES];
    struct stat info;
    if (strcmp(name, NMLP_DIR_STAGE_MARKER) == 0) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_path_join(from, sizeof from, from_dir, name, err));
    NMLP_RETURN_IF_FAILED(nmlp_path_join(to, sizeof to, to_dir, name, err));
    if (stat(from, &info) != 0 || !S_ISREG(info.st_mode)) return NMLP_OK;
    if (linked && link(from, to) == 0) return NMLP_OK;
    return copy_file(from, to, err);
}

nmlp_status nmlp_dir_copy_files(const char *from, const char *to, bool link, nmlp_err *err) {
    const struct dirent *entry;
    nmlp_status st = NMLP_OK;
    DIR *dir = opendir(from);
    if (!dir) return nmlp_fail(err, NMLP_E_IO, "%s: cannot be read", from);
    while (st == NMLP_OK && (entry = readdir(dir))) st = copy_entry(from, to, entry->d_name, link, err);
    closedir(dir);
    return st;
}
