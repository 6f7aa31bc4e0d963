#include "base/hash64.h"

#include <string.h>

static const uint64_t P1 = 0x9E3779B185EBCA87u;
static const uint64_t P2 = 0xC2B2AE3D27D4EB4Fu;
static const uint64_t P3 = 0x165667B19E3779F9u;
static const uint64_t P4 = 0x85EBCA77C2B2AE63u;
static const uint64_t P5 = 0x27D4EB2F165667C5u;

static uint64_t rotate(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

/* Little-endian, as the definition asks. */
static uint64_t read64(const unsigned char *at) {
    uint64_t x;
    memcpy(&x, at, sizeof x);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    x = __builtin_bswap64(x);
#endif
    return x;
}

static uint64_t read32(const unsigned char *at) {
    return (uint64_t)at[0] | (uint64_t)at[1] << 8 | (uint64_t)at[2] << 16 | (uint64_t)at[3] << 24;
}

static uint64_t mix(uint64_t lane, uint64_t input) { return rotate(lane + input * P2, 31) * P1; }

static uint64_t merge(uint64_t hash, uint64_t lane) { return (hash ^ mix(0, lane)) * P1 + P4; }

static uint64_t finish(uint64_t hash, const unsigned char *at, size_t len) {
    for (; len >= 8; at += 8, len -= 8) hash = rotate(hash ^ mix(0, read64(at)), 27) * P1 + P4;
    if (len >= 4) {
        hash = rotate(hash ^ read32(at) * P1, 23) * P2 + P3;
        at += 4;
        len -= 4;
    }
    for (; len > 0; at++, len--) hash = rotate(hash ^ *at * P5, 11) * P1;
    hash = (hash ^ hash >> 33) * P2;
    hash = (hash ^ hash >> 29) * P3;
    return hash ^ hash >> 32;
}

/* Whole stripes of 32 bytes; returns how many bytes were taken. The lanes stay in registers. */
static size_t add_stripes(uint64_t lane[4], const unsigned char *at, size_t len) {
    uint64_t a = lane[0], b = lane[1], c = lane[2], d = lane[3];
    size_t taken = 0;
    for (; len - taken >= 32; taken += 32) {
        a = mix(a, read64(at + taken));
        b = mix(b, read64(at + taken + 8));
        c = mix(c, read64(at + taken + 16));
        d = mix(d, read64(at + taken + 24));
    }
    lane[0] = a, lane[1] = b, lane[2] = c, lane[3] = d;
    return taken;
}

void nmlp_hash64_begin(nmlp_hash64_state *s, uint64_t seed) {
    *s = (nmlp_hash64_state){.lane = {seed + P1 + P2, seed + P2, seed, seed - P1}, .seed = seed};
}

void nmlp_hash64_add(nmlp_hash64_state *s, const void *bytes, size_t len) {
    const unsigned char *at = bytes;
    if (len == 0) return;
    s->total_bytes += len;
    if (s->n_rest > 0) {
        size_t n = sizeof s->rest - s->n_rest < len ? sizeof s->rest - s->n_rest : len;
        memcpy(s->rest + s->n_rest, at, n);
        s->n_rest += n;
        at += n;
        len -= n;
        if (s->n_rest < sizeof s->rest) return;
        add_stripes(s->lane, s->rest, sizeof s->rest);
    }
    size_t taken = add_stripes(s->lane, at, len);
    s->n_rest = len - taken;
    memcpy(s->rest, at + taken, s->n_rest);
}

uint64_t nmlp_hash64_end(const nmlp_hash64_state *s) {
    uint64_t hash = s->seed + P5;
    if (s->total_bytes >= 32) {
        hash = rotate(s->lane[0], 1) + rotate(s->lane[1], 7) + rotate(s->lane[2], 12) + rotate(s->lane[3], 18);
        for (int i = 0; i < 4; i++) hash = merge(hash, s->lane[i]);
    }
    return finish(hash + s->total_bytes, s->rest, s->n_rest);
}

uint64_t nmlp_hash64(const void *bytes, size_t len, uint64_t seed) {
    nmlp_hash64_state s;
    nmlp_hash64_begin(&s, seed);
    nmlp_hash64_add(&s, bytes, len);
    return nmlp_hash64_end(&s);
}
