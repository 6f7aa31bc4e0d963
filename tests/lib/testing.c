#define _GNU_SOURCE
#include "lib/testing.h"

#include <ftw.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

void nmlp_assert_ok(nmlp_status st, const nmlp_err *err) {
    if (st != NMLP_OK) fail_msg("status %d: %s", (int)st, err ? err->message : "(no message)");
}

void nmlp_assert_fails(nmlp_status st, const nmlp_err *err, nmlp_status code, ...) {
    va_list parts;
    if (st != code) fail_msg("status %d, expected %d: %s", (int)st, (int)code, st == NMLP_OK ? "" : err->message);
    va_start(parts, code);
    for (const char *part = va_arg(parts, const char *); part; part = va_arg(parts, const char *)) {
        if (!strstr(err->message, part)) fail_msg("message \"%s\" does not contain \"%s\"", err->message, part);
    }
    va_end(parts);
}

const char *nmlp_test_shared_path(char *out, size_t out_bytes, const char *relative) {
    struct stat info;
    snprintf(out, out_bytes, "%s/%s", NMLP_TEST_SHARED, relative);
    if (stat(out, &info) == 0) return out;
    fprintf(stderr, "SKIPPED: %s is absent\n", out);
    return NULL;
}

void nmlp_test_mkdtemp(char *out, size_t out_bytes) {
    snprintf(out, out_bytes, "/tmp/nmlp-test-XXXXXX");
    assert_non_null(mkdtemp(out));
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk) {
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

void nmlp_test_rmdir(const char *path) { nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS); }

void nmlp_test_write_file(const char *path, const void *bytes, size_t len) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, len, file), len);
    assert_int_equal(fclose(file), 0);
}
