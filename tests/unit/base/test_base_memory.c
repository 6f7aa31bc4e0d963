/* What control groups leave of memory, in folders that look as the kernel's do; blocks larger than that are refused
 * with both numbers. */
#include <stdint.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/memory_limit.h"
#include "lib/testing.h"

static void put(const char *dir, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    nmlp_test_write_file(path, text, strlen(text));
}

static void make(char out[400], const char *parent, const char *name) {
    snprintf(out, 400, "%.300s/%.80s", parent, name);
    assert_int_equal(mkdir(out, 0700), 0);
}

static void the_narrowest_group_counts(void **state) {
    char root[256], outer[400], inner[400];
    (void)state;
    nmlp_test_mkdtemp(root, sizeof root);
    make(outer, root, "outer");
    make(inner, outer, "inner");
    assert_true(nmlp_memory_group_bytes(root, "0::/outer/inner\n") == SIZE_MAX);
    put(inner, "memory.max", "max\n");
    put(inner, "memory.current", "1000\n");
    assert_true(nmlp_memory_group_bytes(root, "0::/outer/inner\n") == SIZE_MAX);
    put(outer, "memory.max", "9000\n");
    put(outer, "memory.current", "5000\n");
    put(outer, "memory.stat", "anon 2000\nfile 3000\nkernel 0\n");
    assert_int_equal(nmlp_memory_group_bytes(root, "0::/outer/inner\n"), 9000 - (5000 - 3000));
    put(inner, "memory.max", "1500\n");
    assert_int_equal(nmlp_memory_group_bytes(root, "0::/outer/inner\n"), 500);
    assert_int_equal(nmlp_memory_group_bytes(root, "1:cpu:/outer\n0::/outer\n"), 7000);
    put(inner, "memory.current", "2000\n"); /* over it already */
    assert_int_equal(nmlp_memory_group_bytes(root, "0::/outer/inner\n"), 0);
    assert_true(nmlp_memory_group_bytes(root, "0::/\n") == SIZE_MAX);
    assert_true(nmlp_memory_group_bytes(root, "garbage") == SIZE_MAX);
    nmlp_test_rmdir(root);
}

static void version_1_has_a_folder_for_memory(void **state) {
    char root[256], memory[400], inner[400];
    (void)state;
    nmlp_test_mkdtemp(root, sizeof root);
    make(memory, root, "memory");
    make(inner, memory, "job");
    put(memory, "memory.limit_in_bytes", "9223372036854771712\n");
    put(memory, "memory.usage_in_bytes", "5\n");
    put(inner, "memory.limit_in_bytes", "70000\n");
    put(inner, "memory.usage_in_bytes", "30000\n");
    put(inner, "memory.stat", "cache 1\nrss 2\ntotal_cache 10000\n");
    assert_int_equal(nmlp_memory_group_bytes(root, "8:pids:/\n4:memory:/job\n0::/\n"), 50000);
    assert_true(nmlp_memory_group_bytes(root, "4:memory:/\n") > (size_t)1 << 60);
    nmlp_test_rmdir(root);
}

static void a_block_that_cannot_fit_is_refused_with_its_number(void **state) {
    nmlp_err err = {0};
    (void)state;
    size_t bytes = (size_t)1 << 50;
    assert_null(nmlp_mem_new(bytes, 1, &err));
    assert_null(nmlp_mem_new_raw(bytes, 1, &err));
    assert_non_null(strstr(err.message, "1125899906842624 bytes are needed"));
    assert_non_null(strstr(err.message, "are available"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_narrowest_group_counts),
        cmocka_unit_test(version_1_has_a_folder_for_memory),
        cmocka_unit_test(a_block_that_cannot_fit_is_refused_with_its_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
