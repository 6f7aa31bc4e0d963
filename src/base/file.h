/* Files: read-only maps, whole-file reads, and output that is either complete or absent.
 *
 * Output is written under a temporary name beside its destination and renamed when it is complete and on disk,
 * so a full disk or a kill leaves whatever stood there before. */
#ifndef NMLP_BASE_FILE_H
#define NMLP_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

typedef struct nmlp_file_map {
    const unsigned char *data; /* NULL when the file is empty */
    size_t bytes;
} nmlp_file_map;

nmlp_status nmlp_file_map_open(nmlp_file_map *map, const char *path, nmlp_err *err);
void nmlp_file_map_close(nmlp_file_map *map);

/* Tells the kernel that [data, data+bytes) of a map is not needed any more (it can be read again). */
void nmlp_file_map_release(const void *data, size_t bytes);

/* Appends the file's bytes to `text`; refuses files above `max_bytes`. */
nmlp_status nmlp_file_read(nmlp_str *text, const char *path, size_t max_bytes, nmlp_err *err);
/* The same for what need not be a file: a pipe, and standard input as "-". */
nmlp_status nmlp_input_read(nmlp_str *text, const char *path, size_t max_bytes, nmlp_err *err);

bool nmlp_file_exists(const char *path);
bool nmlp_file_is_dir(const char *path);

/* "dir/name" into `out`. */
nmlp_status nmlp_path_join(char *out, size_t out_bytes, const char *dir, const char *name, nmlp_err *err);

/* How the names of unfinished files begin: ".neuronmlp-tmp-<name>-XXXXXX" beside their destination. One that a killed
 * process left is removed by the next writer of the same file, or with the folder. */
#define NMLP_FILE_TEMP_PREFIX ".neuronmlp-tmp-"

/* Links are followed: the file they lead to is replaced. Devices and pipes are written to as they are. */
typedef struct nmlp_file_writer {
    int fd;
    char *path;      /* destination */
    char *temp_path; /* where the bytes go until commit; NULL for devices and pipes */
} nmlp_file_writer;

nmlp_status nmlp_file_writer_open(nmlp_file_writer *writer, const char *path, nmlp_err *err);
nmlp_status nmlp_file_writer_write(nmlp_file_writer *writer, const void *bytes, size_t len, nmlp_err *err);
/* fsync, rename; the writer is closed whatever the result. */
nmlp_status nmlp_file_writer_commit(nmlp_file_writer *writer, nmlp_err *err);
/* Removes the temporary file. Safe after commit and on a zeroed writer with fd -1. */
void nmlp_file_writer_abort(nmlp_file_writer *writer);

/* Writes a whole text file atomically. */
nmlp_status nmlp_file_write_text(const char *path, const char *text, size_t len, nmlp_err *err);

#endif
