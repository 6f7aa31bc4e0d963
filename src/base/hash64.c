#include "base/hash64.h"

static const uint64_t P1 = 0x9E3779B185EBCA87u;
static const uint64_t P2 = 0xC2B2AE3D27D4EB4Fu;
static const uint64_t P3 = 0x165667B19E3779F9u;
static const uint64_t P4 = 0x85EBCA77C2B2AE63u;
static const uint64_t P5 = 0x27D4EB2F165667C5u;

static uint64_t rotate(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

/* Little-endian, as the definition asks. */
static uint64_t read64(const unsigned char *at) {
    uint64_t x = 0;
    for (int i = 7; i >= 0; i--) x = x << 8 | at[i];
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

uint64_t nmlp_hash64(const void *bytes, size_t len, uint64_t seed) {
    const unsigned char *at = bytes;
    uint64_t hash = seed + P5;
    size_t left = len;
    if (len >= 32) {
        uint64_t lane[4] = {seed + P1 + P2, seed + P2, seed, seed - P1};
        for (; left >= 32; left -= 32, at += 32) {
            for (int i = 0; i < 4; i++) lane[i] = mix(lane[i], read64(at + 8 * i));
        }
        hash = rotate(lane[0], 1) + rotate(lane[1], 7) + rotate(lane[2], 12) + rotate(lane[3], 18);
        for (int i = 0; i < 4; i++) hash = merge(hash, lane[i]);
    }
    return finish(hash + (uint64_t)len, at, left);
}
