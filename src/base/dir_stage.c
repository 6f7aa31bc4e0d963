#define _GNU_SOURCE /* renameat2 */
#include "base/dir_stage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/file_internal.h"
#include "base/mem.h"

enum { PATH_MAX_BYTES = 4096, TRIES = 16 };

/* ---- removing ---- */

static bool is_dots(const char *name) { return strcmp(name, ".") == 0 || strcmp(name, "..") == 0; }

/* Files that a killed writer left. */
static bool is_cut_short(const char *name) {
    return strncmp(name, NMLP_FILE_TEMP_PREFIX, sizeof NMLP_FILE_TEMP_PREFIX - 1) == 0;
}

static bool remove_tree(int parent_fd, const char *name);

/* Removes entries below a directory, never through a link; with `only_cut_short` only such files. False where something
 * could not be removed; errno says why. */
static bool clear(int fd, bool only_cut_short) {
    bool all = true;
    int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* closedir closes it */
    DIR *dir = copy >= 0 ? fdopendir(copy) : NULL;
    const struct dirent *entry;
    if (!dir) {
        if (copy >= 0) close(copy);
        return false;
    }
    while ((entry = readdir(dir))) {
        if (is_dots(entry->d_name) || strcmp(entry->d_name, NMLP_DIR_STAGE_MARKER) == 0) continue;
        if (!only_cut_short || is_cut_short(entry->d_name)) all &= remove_tree(fd, entry->d_name);
    }
    closedir(dir);
    return all;
}

static bool remove_tree(int parent_fd, const char *name) {
    int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return unlinkat(parent_fd, name, 0) == 0 || errno == ENOENT;
    /* The marker last: what is left half removed is still marked. */
    bool empty = clear(fd, false) && (unlinkat(fd, NMLP_DIR_STAGE_MARKER, 0) == 0 || errno == ENOENT);
    int why = errno;
    close(fd);
    errno = why;
    return empty && unlinkat(parent_fd, name, AT_REMOVEDIR) == 0;
}

static void clear_path(const char *path, bool only_cut_short) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return;
    (void)clear(fd, only_cut_short);
    close(fd);
}

static bool has_entries(const char *path) {
    const struct dirent *entry;
    bool found = false;
    DIR *dir = opendir(path);
    if (!dir) return true; /* what cannot be read is not ours to take */
    while (!found && (entry = readdir(dir)))
        found = !is_dots(entry->d_name) && strcmp(entry->d_name, NMLP_DIR_STAGE_MARKER) != 0;
    closedir(dir);
    return found;
}

/* ---- marker and lock ---- */

static bool marker_path(char path[PATH_MAX_BYTES], const char *dir) {
    return nmlp_path_join(path, PATH_MAX_BYTES, dir, NMLP_DIR_STAGE_MARKER, NULL) == NMLP_OK;
}

static nmlp_status refuse_foreign(const char *dir, nmlp_err *err) {
    nmlp_fail(err, NMLP_E_IO, "%s: stands where this run would work, and this program did not make it", dir);
    nmlp_fail_hint(err, "move it away, or choose another output");
    return NMLP_E_IO;
}

static nmlp_status refuse_busy(const char *dir, nmlp_err *err) {
    nmlp_fail(err, NMLP_E_IO, "%s: another run is using it", dir);
    nmlp_fail_hint(err, "wait for it to end, or choose another output");
    return NMLP_E_IO;
}

/* File systems without locks lock nothing. */
static bool is_locked_elsewhere(int fd) { return flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; }

static bool is_same_file(int fd, const char *path) {
    struct stat opened, there;
    return fstat(fd, &opened) == 0 && stat(path, &there) == 0 && opened.st_ino == there.st_ino &&
           opened.st_dev == there.st_dev;
}

/* Opens and locks the marker of a directory that exists; *fd -1 where it went away meanwhile. */
static nmlp_status lock_marker(const char *dir, int *fd, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    *fd = -1;
    if (!marker_path(path, dir)) return nmlp_fail(err, NMLP_E_ARG, "%s: the path is too long", dir);
    int marker = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (marker < 0 && errno == ENOENT) {
        struct stat info;
        if (lstat(dir, &info) != 0 && errno == ENOENT) return NMLP_OK;
        if (has_entries(dir)) return refuse_foreign(dir, err);
        marker = open(path, O_RDWR | O_CLOEXEC | O_CREAT | O_EXCL, 0666);
        if (marker < 0 && (errno == EEXIST || errno == ENOENT)) return NMLP_OK;
    }
    if (marker < 0) return nmlp_file_fail_errno(err, path, "open");
    if (is_locked_elsewhere(marker)) {
        close(marker);
        return refuse_busy(dir, err);
    }
    if (!is_same_file(marker, path)) { /* its owner ended and removed it before it could be locked */
        close(marker);
        return NMLP_OK;
    }
    *fd = marker;
    return NMLP_OK;
}

static nmlp_status make_and_lock(nmlp_dir_stage *stage, nmlp_err *err) {
    for (int i = 0; i < TRIES; i++) {
        struct stat info;
        if (mkdir(stage->temp_path, 0777) != 0 && errno != EEXIST)
            return nmlp_file_fail_errno(err, stage->temp_path, "create the directory");
        if (lstat(stage->temp_path, &info) == 0 && !S_ISDIR(info.st_mode)) return refuse_foreign(stage->temp_path, err);
        NMLP_RETURN_IF_FAILED(lock_marker(stage->temp_path, &stage->lock_fd, err));
        if (stage->lock_fd >= 0) return NMLP_OK;
    }
    return refuse_busy(stage->temp_path, err);
}

/* ---- the exchange ---- */

/* A marker that stands in the finished directory is of a run that died between the exchange and the removal of the old
 * directory, which it names by device and inode. */
static nmlp_status finish_exchange(const nmlp_dir_stage *stage, nmlp_err *err) {
    char path[PATH_MAX_BYTES], text[64] = {0};
    uintmax_t dev, ino;
    struct stat old;
    if (!marker_path(path, stage->path)) return nmlp_fail(err, NMLP_E_ARG, "%s: the path is too long", stage->path);
    nmlp_status st = NMLP_OK;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return NMLP_OK;
    if (fd < 0) return nmlp_file_fail_errno(err, path, "open");
    if (is_locked_elsewhere(fd)) {
        close(fd);
        return refuse_busy(stage->path, err);
    }
    if (read(fd, text, sizeof text - 1) > 0 && sscanf(text, "replaces %" SCNuMAX " %" SCNuMAX, &dev, &ino) == 2 &&
        lstat(stage->temp_path, &old) == 0 && S_ISDIR(old.st_mode) && old.st_dev == (dev_t)dev &&
        old.st_ino == (ino_t)ino && !remove_tree(AT_FDCWD, stage->temp_path))
        st = nmlp_file_fail_errno(err, stage->temp_path, "remove what stood there before");
    if (st == NMLP_OK && unlink(path) != 0) st = nmlp_file_fail_errno(err, path, "remove");
    close(fd);
    return st;
}

static nmlp_status sync_dir(const char *dir, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return nmlp_file_fail_errno(err, dir, "open");
    if (fsync(fd) != 0 && errno != EINVAL && errno != EROFS) st = nmlp_file_fail_errno(err, dir, "flush");
    close(fd);
    return st;
}

/* The folders below a directory, then itself; files were synced when they were written. */
static nmlp_status sync_tree(const char *dir, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    const struct dirent *entry;
    DIR *list = opendir(dir);
    if (!list) return nmlp_file_fail_errno(err, dir, "open");
    while (st == NMLP_OK && (entry = readdir(list))) {
        char path[PATH_MAX_BYTES];
        struct stat info;
        if (is_dots(entry->d_name)) continue;
        st = nmlp_path_join(path, sizeof path, dir, entry->d_name, err);
        if (st == NMLP_OK && lstat(path, &info) == 0 && S_ISDIR(info.st_mode)) st = sync_tree(path, err);
    }
    closedir(list);
    return st == NMLP_OK ? sync_dir(dir, err) : st;
}

static nmlp_status sync_parent(const char *path, nmlp_err *err) {
    char parent[PATH_MAX_BYTES];
    if (snprintf(parent, sizeof parent, "%s", path) >= (int)sizeof parent)
        return nmlp_fail(err, NMLP_E_ARG, "%s: the path is too long", path);
    char *slash = strrchr(parent, '/');
    if (!slash) return sync_dir(".", err);
    slash[slash == parent ? 1 : 0] = '\0';
    return sync_dir(parent, err);
}

static nmlp_status note_replaced(const nmlp_dir_stage *stage, nmlp_err *err) {
    char text[64];
    struct stat old;
    if (stat(stage->path, &old) != 0) return nmlp_file_fail_errno(err, stage->path, "stat");
    int n = snprintf(text, sizeof text, "replaces %" PRIuMAX " %" PRIuMAX "\n", (uintmax_t)old.st_dev,
                     (uintmax_t)old.st_ino);
    if (pwrite(stage->lock_fd, text, (size_t)n, 0) != n || fsync(stage->lock_fd) != 0)
        return nmlp_file_fail_errno(err, stage->temp_path, "write the marker");
    return NMLP_OK;
}

static nmlp_status exchange(const nmlp_dir_stage *stage, nmlp_err *err) {
    char marker[PATH_MAX_BYTES];
    bool replaces = nmlp_file_exists(stage->path);
    NMLP_RETURN_IF_FAILED(sync_tree(stage->temp_path, err));
    if (replaces) NMLP_RETURN_IF_FAILED(note_replaced(stage, err));
    if (!replaces && rename(stage->temp_path, stage->path) != 0)
        return nmlp_file_fail_errno(err, stage->path, "rename into place");
    if (replaces && renameat2(AT_FDCWD, stage->temp_path, AT_FDCWD, stage->path, RENAME_EXCHANGE) != 0)
        return nmlp_file_fail_errno(err, stage->path, "replace the old output");
    nmlp_status st = sync_parent(stage->path, err);
    /* Now the old output. Where it cannot be removed, the marker stays and tells the next run whose it is. */
    if (replaces && !remove_tree(AT_FDCWD, stage->temp_path)) {
        st = nmlp_file_fail_errno(err, stage->temp_path, "remove what stood there before");
    } else if (!marker_path(marker, stage->path) || unlink(marker) != 0) {
        st = nmlp_file_fail_errno(err, stage->path, "remove the marker");
    }
    if (st != NMLP_OK) nmlp_fail_hint(err, "the output in %s is complete", stage->path);
    return st;
}

/* ---- stages ---- */

static void stage_free(nmlp_dir_stage *stage) {
    if (stage->temp_path && stage->lock_fd >= 0) close(stage->lock_fd);
    nmlp_mem_free(stage->path);
    nmlp_mem_free(stage->temp_path);
    *stage = (nmlp_dir_stage){.lock_fd = -1};
}

static nmlp_status stage_name(nmlp_dir_stage *stage, const char *path, nmlp_err *err) {
    *stage = (nmlp_dir_stage){.path = nmlp_path_final(path, err), .lock_fd = -1};
    if (stage->path) stage->temp_path = nmlp_path_with_suffix(stage->path, ".partial", err);
    if (stage->temp_path) return NMLP_OK;
    stage_free(stage);
    return NMLP_E_NOMEM;
}

nmlp_status nmlp_dir_stage_visit(nmlp_dir_stage *stage, const char *path, nmlp_err *err) {
    char marker[PATH_MAX_BYTES];
    NMLP_RETURN_IF_FAILED(stage_name(stage, path, err));
    if (marker_path(marker, stage->temp_path) && nmlp_file_exists(marker)) return NMLP_OK;
    nmlp_fail(err, NMLP_E_IO, "%s: the first process works there, and this one does not see it", stage->temp_path);
    nmlp_fail_hint(err, "put it on a file system that all processes share");
    stage_free(stage);
    return NMLP_E_IO;
}

nmlp_status nmlp_dir_stage_open(nmlp_dir_stage *stage, const char *path, bool resume, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(stage_name(stage, path, err));
    nmlp_status st = NMLP_OK;
    if (nmlp_file_exists(stage->path) && !nmlp_file_is_dir(stage->path))
        st = nmlp_fail(err, NMLP_E_IO, "%s: exists and is not a directory", path);
    if (st == NMLP_OK) st = finish_exchange(stage, err);
    if (st == NMLP_OK) st = make_and_lock(stage, err);
    if (st != NMLP_OK) {
        stage_free(stage);
        return st;
    }
    clear_path(stage->temp_path, resume);
    return NMLP_OK;
}

nmlp_status nmlp_dir_stage_commit(nmlp_dir_stage *stage, nmlp_err *err) {
    nmlp_status st = exchange(stage, err);
    if (st != NMLP_OK && err && !err->hint[0] && nmlp_file_exists(stage->temp_path))
        nmlp_fail_hint(err, "the finished output is in %s", stage->temp_path);
    stage_free(stage);
    return st;
}

void nmlp_dir_stage_abort(nmlp_dir_stage *stage) {
    if (stage->temp_path) (void)remove_tree(AT_FDCWD, stage->temp_path);
    stage_free(stage);
}

nmlp_status nmlp_dir_stage_discard(nmlp_dir_stage *stage, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    if (stage->temp_path && !remove_tree(AT_FDCWD, stage->temp_path))
        st = nmlp_file_fail_errno(err, stage->temp_path, "remove the work folder");
    stage_free(stage);
    return st;
}

void nmlp_dir_stage_keep(nmlp_dir_stage *stage) { stage_free(stage); }

bool nmlp_dir_stage_has_files(const nmlp_dir_stage *stage) { return stage->temp_path && has_entries(stage->temp_path); }
