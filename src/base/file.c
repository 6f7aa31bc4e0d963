#define _GNU_SOURCE /* mkstemp, realpath, madvise, flock */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_internal.h"
#include "base/mem.h"

nmlp_status nmlp_file_fail_errno(nmlp_err *err, const char *path, const char *what) {
    int code = errno;
    nmlp_status st = nmlp_fail(err, NMLP_E_IO, "%s: cannot %s: %s", path, what, strerror(code));
    if (code == ENOSPC) nmlp_fail_hint(err, "the disk is full: free space or choose another output");
    if (code == EFBIG)
        nmlp_fail_hint(err, "files may not grow this large here: raise the limit (ulimit -f) or choose another output");
    return st;
}

static nmlp_status open_regular(int *fd, struct stat *info, const char *path, nmlp_err *err) {
    /* Not blocking: the open of a pipe without a writer would wait for one. */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return nmlp_file_fail_errno(err, path, "open");
    nmlp_status st = NMLP_OK;
    if (fstat(*fd, info) != 0) {
        st = nmlp_file_fail_errno(err, path, "stat");
    } else if (!S_ISREG(info->st_mode)) {
        st = nmlp_fail(err, NMLP_E_IO, "%s: is not a regular file", path);
    }
    if (st != NMLP_OK) close(*fd);
    return st;
}

nmlp_status nmlp_file_map_open(nmlp_file_map *map, const char *path, nmlp_err *err) {
    int fd;
    struct stat info;
    *map = (nmlp_file_map){0};
    NMLP_RETURN_IF_FAILED(open_regular(&fd, &info, path, err));
    nmlp_status st = NMLP_OK;
    if (info.st_size > 0) {
        void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            st = nmlp_file_fail_errno(err, path, "map");
        } else {
            map->data = data;
            map->bytes = (size_t)info.st_size;
        }
    }
    close(fd);
    return st;
}

void nmlp_file_map_close(nmlp_file_map *map) {
    if (map->data) munmap((void *)(uintptr_t)map->data, map->bytes);
    *map = (nmlp_file_map){0};
}

void nmlp_file_map_release(const void *data, size_t bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)data + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)data + bytes) / page * page;
    if (end > begin) madvise((void *)begin, end - begin, MADV_DONTNEED);
}

nmlp_status nmlp_file_read(nmlp_str *text, const char *path, size_t max_bytes, nmlp_err *err) {
    nmlp_file_map map;
    NMLP_RETURN_IF_FAILED(nmlp_file_map_open(&map, path, err));
    nmlp_status st = NMLP_OK;
    if (map.bytes > max_bytes) {
        st = nmlp_fail(err, NMLP_E_LIMIT, "%s: is %zu bytes, at most %zu are read", path, map.bytes, max_bytes);
    } else {
        nmlp_str_append(text, map.data, map.bytes);
        if (text->failed) st = nmlp_fail(err, NMLP_E_NOMEM, "%s: out of memory for its %zu bytes", path, map.bytes);
    }
    nmlp_file_map_close(&map);
    return st;
}

nmlp_status nmlp_input_read(nmlp_str *text, const char *path, size_t max_bytes, nmlp_err *err) {
    char piece[1 << 16];
    size_t total = 0;
    bool standard = strcmp(path, "-") == 0;
    FILE *input = standard ? stdin : fopen(path, "rbe");
    if (!input) return nmlp_file_fail_errno(err, path, "open");
    nmlp_status st = NMLP_OK;
    for (size_t n; st == NMLP_OK && (n = fread(piece, 1, sizeof piece, input)) > 0; total += n) {
        nmlp_str_append(text, piece, n);
        st = nmlp_str_status(text, err);
        if (n > max_bytes - total) st = nmlp_fail(err, NMLP_E_LIMIT, "%s: is longer than %zu bytes", path, max_bytes);
    }
    if (st == NMLP_OK && ferror(input)) st = nmlp_file_fail_errno(err, standard ? "standard input" : path, "read");
    if (!standard) fclose(input);
    return st;
}

bool nmlp_file_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

bool nmlp_file_is_dir(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

nmlp_status nmlp_path_join(char *out, size_t out_bytes, const char *dir, const char *name, nmlp_err *err) {
    int n = snprintf(out, out_bytes, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= out_bytes) return nmlp_fail(err, NMLP_E_ARG, "path too long: %s/%s", dir, name);
    return NMLP_OK;
}

char *nmlp_path_with_suffix(const char *path, const char *suffix, nmlp_err *err) {
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/') len--;
    size_t suffix_len = strlen(suffix);
    char *text = nmlp_mem_new(len + suffix_len + 1, 1, err);
    if (!text) return NULL;
    memcpy(text, path, len);
    memcpy(text + len, suffix, suffix_len);
    return text;
}

char *nmlp_path_final(const char *path, nmlp_err *err) {
    char *real = realpath(path, NULL);
    if (!real && errno == ENOMEM) {
        nmlp_fail(err, NMLP_E_NOMEM, "%s: out of memory while its links were followed", path);
        return NULL;
    }
    char *copy = nmlp_path_with_suffix(real ? real : path, "", err);
    free(real);
    return copy;
}

/* A device or a pipe can be written to, not replaced. */
static bool is_special(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && !S_ISREG(info.st_mode);
}

static void writer_free(nmlp_file_writer *writer) {
    nmlp_mem_free(writer->path);
    nmlp_mem_free(writer->temp_path);
    *writer = (nmlp_file_writer){.fd = -1};
}

/* "<dir>/.neuronmlp-tmp-<name>-XXXXXX" for "<dir>/<name>". */
static char *temp_path_for(const char *path, nmlp_err *err) {
    static const char unique[] = "-XXXXXX";
    const char *slash = strrchr(path, '/');
    size_t dir_len = slash ? (size_t)(slash - path) + 1 : 0;
    size_t bytes = strlen(path) + sizeof NMLP_FILE_TEMP_PREFIX + sizeof unique;
    char *text = nmlp_mem_new(bytes, 1, err);
    if (text) snprintf(text, bytes, "%.*s%s%s%s", (int)dir_len, path, NMLP_FILE_TEMP_PREFIX, path + dir_len, unique);
    return text;
}

/* Its writer holds a lock while it lives. */
static void remove_if_dead(int dir_fd, const char *name) {
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) (void)unlinkat(dir_fd, name, 0);
    close(fd);
}

/* Removes what killed writers of the same file left. */
static void remove_dead_temps(const char *temp_path) {
    const char *slash = strrchr(temp_path, '/'), *name = slash ? slash + 1 : temp_path;
    size_t len = strlen(name), dir_len = (size_t)(name - temp_path);
    char dir_path[4096] = ".";
    const struct dirent *entry;
    if (dir_len >= sizeof dir_path) return;
    if (dir_len) memcpy(dir_path, temp_path, dir_len);
    DIR *dir = opendir(dir_path);
    while (dir && (entry = readdir(dir)))
        if (strlen(entry->d_name) == len && strncmp(entry->d_name, name, len - 6) == 0)
            remove_if_dead(dirfd(dir), entry->d_name);
    if (dir) closedir(dir);
}

static int open_temp(char *temp_path) {
    remove_dead_temps(temp_path);
    int fd = mkostemp(temp_path, O_CLOEXEC);
    if (fd < 0) return fd;
    (void)flock(fd, LOCK_EX | LOCK_NB);
    mode_t mask = umask(0);
    umask(mask);
    (void)fchmod(fd, 0666 & ~mask);
    return fd;
}

nmlp_status nmlp_file_writer_open(nmlp_file_writer *writer, const char *path, nmlp_err *err) {
    *writer = (nmlp_file_writer){.fd = -1};
    if (nmlp_file_is_dir(path))
        return nmlp_fail(err, NMLP_E_IO, "%s: is a directory; a file is to be written there", path);
    bool special = is_special(path);
    writer->path = nmlp_path_final(path, err);
    if (writer->path && !special) writer->temp_path = temp_path_for(writer->path, err);
    if (!writer->path || (!special && !writer->temp_path)) {
        writer_free(writer);
        return NMLP_E_NOMEM;
    }
    writer->fd = special ? open(path, O_WRONLY | O_CLOEXEC) : open_temp(writer->temp_path);
    if (writer->fd >= 0) return NMLP_OK;
    nmlp_status st = nmlp_file_fail_errno(err, path, special ? "open" : "create");
    writer_free(writer);
    return st;
}

nmlp_status nmlp_file_writer_write(nmlp_file_writer *writer, const void *bytes, size_t len, nmlp_err *err) {
    const char *at = bytes;
    while (len > 0) {
        ssize_t n = write(writer->fd, at, len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return nmlp_file_fail_errno(err, writer->path, "write");
        at += n;
        len -= (size_t)n;
    }
    return NMLP_OK;
}

nmlp_status nmlp_file_writer_commit(nmlp_file_writer *writer, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    if (fsync(writer->fd) != 0 && errno != EINVAL && errno != EROFS)
        st = nmlp_file_fail_errno(err, writer->path, "flush");
    if (close(writer->fd) != 0 && st == NMLP_OK) st = nmlp_file_fail_errno(err, writer->path, "close");
    writer->fd = -1;
    if (st == NMLP_OK && writer->temp_path && rename(writer->temp_path, writer->path) != 0)
        st = nmlp_file_fail_errno(err, writer->path, "rename into place");
    if (st != NMLP_OK && writer->temp_path) unlink(writer->temp_path);
    writer_free(writer);
    return st;
}

void nmlp_file_writer_abort(nmlp_file_writer *writer) {
    if (writer->fd >= 0) close(writer->fd);
    if (writer->temp_path) unlink(writer->temp_path);
    writer_free(writer);
}

nmlp_status nmlp_file_write_text(const char *path, const char *text, size_t len, nmlp_err *err) {
    nmlp_file_writer writer;
    NMLP_RETURN_IF_FAILED(nmlp_file_writer_open(&writer, path, err));
    nmlp_status st = nmlp_file_writer_write(&writer, text, len, err);
    if (st != NMLP_OK) {
        nmlp_file_writer_abort(&writer);
        return st;
    }
    return nmlp_file_writer_commit(&writer, err);
}
