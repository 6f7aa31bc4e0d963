/* Files of work in progress, for the program that wrote them: the payload, then a trailer with what it is (magic), what
 * it depends on (fingerprint), its length and a checksum (XXH64). A file that is cut short, damaged, of another kind or
 * of another job counts as absent, and is then made again. Byte order of the machine. */
#ifndef NMLP_BASE_WORK_FILE_H
#define NMLP_BASE_WORK_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/hash64.h"
#include "base/status.h"

enum { NMLP_WORK_ALIGN = 64 };

typedef struct nmlp_work_writer {
    nmlp_file_writer file;
    nmlp_hash64_state hash;
    const char *magic; /* 8 characters */
    uint64_t fingerprint;
} nmlp_work_writer;

nmlp_status nmlp_work_writer_open(nmlp_work_writer *writer, const char *path, const char *magic, uint64_t fingerprint,
                                  nmlp_err *err);
nmlp_status nmlp_work_writer_put(nmlp_work_writer *writer, const void *bytes, size_t len, nmlp_err *err);
/* The same, with zeros up to the next multiple of NMLP_WORK_ALIGN. */
nmlp_status nmlp_work_writer_put_padded(nmlp_work_writer *writer, const void *bytes, size_t len, nmlp_err *err);
/* As nmlp_file_writer_commit and _abort. */
nmlp_status nmlp_work_writer_commit(nmlp_work_writer *writer, nmlp_err *err);
void nmlp_work_writer_abort(nmlp_work_writer *writer);

typedef enum nmlp_work_state {
    NMLP_WORK_ABSENT,
    NMLP_WORK_OTHER,   /* of another job or version */
    NMLP_WORK_DAMAGED, /* or no work file at all */
    NMLP_WORK_VALID
} nmlp_work_state;

/* Maps the file; `map` is open (payload and trailer) only where *state is NMLP_WORK_VALID, with *payload_bytes bytes of
 * payload at map->data. Every byte was read and compared with the checksum; its pages are given back. */
nmlp_status nmlp_work_file_open(nmlp_file_map *map, const char *path, const char *magic, uint64_t fingerprint,
                                size_t *payload_bytes, nmlp_work_state *state, nmlp_err *err);

/* Takes sizes one after the other out of a payload of known length; anything beyond its end makes `failed`. */
typedef struct nmlp_work_cursor {
    const unsigned char *at;
    size_t left_bytes;
    bool failed;
} nmlp_work_cursor;

/* `len` bytes, at a multiple of NMLP_WORK_ALIGN with `padded` (then the zeros behind it are passed too); NULL where the
 * payload is too short. */
const void *nmlp_work_take(nmlp_work_cursor *cursor, size_t len, bool padded);

#endif
