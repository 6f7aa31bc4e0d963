/* For fuzzers of files whose fields must fit each other and whose checksum must be right: the input is a list of
 * changes to a file that the program wrote itself, so that what is read next is reached whatever its layout becomes. */
#ifndef NMLP_TESTS_FUZZ_PATCHED_H
#define NMLP_TESTS_FUZZ_PATCHED_H

#include <string.h>

#include "base/file.h"
#include "base/work_file.h"
#include "fuzz/in_memory.h"

enum { PATCHED_MAX_BYTES = 1 << 15, WORK_TRAILER_BYTES = 32 };

typedef struct payload {
    uint8_t bytes[PATCHED_MAX_BYTES];
    size_t len;
} payload;

/* The payload of a work file; aborts where it does not fit. */
static inline payload payload_of(const char *path) {
    payload p = {.len = 0};
    nmlp_file_map map;
    nmlp_err err;
    if (nmlp_file_map_open(&map, path, &err) != NMLP_OK || map.bytes < WORK_TRAILER_BYTES ||
        map.bytes - WORK_TRAILER_BYTES > sizeof p.bytes)
        abort();
    p.len = map.bytes - WORK_TRAILER_BYTES;
    memcpy(p.bytes, map.data, p.len);
    nmlp_file_map_close(&map);
    return p;
}

/* Changes `p` as the input says. A change is a byte, whose two lowest bits are its kind, and its arguments:
 *   0  place (2 bytes), value: one byte
 *   1  number, value: the eight bytes at 8 x number become a small number, which may be negative
 *   2  number, value (8 bytes): the same with any number
 *   3  length (2 bytes): cut off, or zeros behind */
static inline void payload_patch(payload *p, const uint8_t *data, size_t size) {
    static const size_t needed[] = {4, 3, 10, 3};
    while (size > 0 && size >= needed[data[0] & 3]) {
        int kind = data[0] & 3;
        size_t place = (size_t)data[1] | (kind == 1 || kind == 2 ? 0 : (size_t)data[2] << 8);
        int64_t number = (int8_t)data[2];
        if (kind == 0 && place < p->len) p->bytes[place] = data[3];
        if (kind == 2) memcpy(&number, data + 2, sizeof number);
        if ((kind == 1 || kind == 2) && 8 * place + 8 <= p->len) memcpy(p->bytes + 8 * place, &number, sizeof number);
        if (kind == 3 && place <= sizeof p->bytes) {
            if (place > p->len) memset(p->bytes + p->len, 0, place - p->len);
            p->len = place;
        }
        size -= needed[kind];
        data += needed[kind];
    }
}

/* How the file that holds it is made: bits of an input's byte. */
enum { PAYLOAD_RAW = 1, PAYLOAD_OTHER = 2, PAYLOAD_UNSEALED = 4 };

/* What a forger can write: the input itself (PAYLOAD_RAW) or changes to `base`, with a checksum that is right, or
 * without one (PAYLOAD_UNSEALED), as part of this run or of another (PAYLOAD_OTHER). Returns the file. */
static inline const char *payload_file(const payload *base, int how, const char *magic, uint64_t fingerprint,
                                       const uint8_t *data, size_t size) {
    static char path[128];
    static payload p;
    nmlp_work_writer writer;
    nmlp_err err;
    p.len = 0;
    if (how & PAYLOAD_RAW) {
        p.len = size < sizeof p.bytes ? size : sizeof p.bytes;
        memcpy(p.bytes, data, p.len);
    } else {
        p = *base;
        payload_patch(&p, data, size);
    }
    if (how & PAYLOAD_UNSEALED) return in_memory_file("work", p.bytes, p.len);
    snprintf(path, sizeof path, "%s/work", in_memory_dir());
    if (nmlp_work_writer_open(&writer, path, magic, fingerprint + (how & PAYLOAD_OTHER ? 1 : 0), &err) != NMLP_OK ||
        nmlp_work_writer_put(&writer, p.bytes, p.len, &err) != NMLP_OK ||
        nmlp_work_writer_commit(&writer, &err) != NMLP_OK)
        abort();
    return path;
}

static inline bool same_payload(const payload *a, const payload *b) {
    return a->len == b->len && memcmp(a->bytes, b->bytes, a->len) == 0;
}

#endif
