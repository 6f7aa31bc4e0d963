/* Work in progress on disk: whose a directory is, who uses it, and what a file in it is worth. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/dir_stage.h"
#include "base/work_file.h"
#include "lib/testing.h"

struct place {
    char dir[256], out[300], partial[320];
};

static struct place make_place(void) {
    struct place p;
    nmlp_test_mkdtemp(p.dir, sizeof p.dir);
    snprintf(p.out, sizeof p.out, "%s/out", p.dir);
    snprintf(p.partial, sizeof p.partial, "%s/out.partial", p.dir);
    return p;
}

static void put(const char *dir, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    nmlp_test_write_file(path, text, strlen(text));
}

static bool has(const char *dir, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return nmlp_file_exists(path);
}

static void a_directory_that_is_not_ours_stays(void **state) {
    struct place p = make_place();
    nmlp_dir_stage stage;
    nmlp_err err;
    (void)state;
    assert_int_equal(mkdir(p.partial, 0777), 0);
    put(p.partial, "letter", "precious");
    for (int resume = 0; resume < 2; resume++) {
        nmlp_assert_fails(nmlp_dir_stage_open(&stage, p.out, resume, &err), &err, NMLP_E_IO, "out.partial",
                          "did not make it", NULL);
        nmlp_dir_stage_abort(&stage);
        assert_true(has(p.partial, "letter"));
    }
    /* A link to a directory of somebody else is none of ours either. */
    char elsewhere[320];
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", p.dir);
    assert_int_equal(rename(p.partial, elsewhere), 0);
    assert_int_equal(symlink("elsewhere", p.partial), 0);
    nmlp_assert_fails(nmlp_dir_stage_open(&stage, p.out, false, &err), &err, NMLP_E_IO, "did not make it", NULL);
    assert_true(has(elsewhere, "letter"));
    nmlp_test_rmdir(p.dir);
}

static void our_own_directory_is_emptied_or_kept(void **state) {
    struct place p = make_place();
    nmlp_dir_stage stage;
    nmlp_err err;
    (void)state;
    nmlp_assert_ok(nmlp_dir_stage_open(&stage, p.out, false, &err), &err);
    assert_false(nmlp_dir_stage_has_files(&stage));
    put(p.partial, "layer", "x");
    put(p.partial, ".neuronmlp-tmp-layer-a1B2c3", "cut short");
    assert_true(nmlp_dir_stage_has_files(&stage));
    nmlp_dir_stage_keep(&stage);
    nmlp_assert_ok(nmlp_dir_stage_open(&stage, p.out, true, &err), &err);
    assert_true(has(p.partial, "layer"));
    assert_false(has(p.partial, ".neuronmlp-tmp-layer-a1B2c3"));
    nmlp_dir_stage_keep(&stage);
    nmlp_assert_ok(nmlp_dir_stage_open(&stage, p.out, false, &err), &err);
    assert_false(has(p.partial, "layer"));
    nmlp_dir_stage_abort(&stage);
    assert_false(nmlp_file_exists(p.partial));
    nmlp_test_rmdir(p.dir);
}

/* A second run is refused while the first lives, and only then. */
static void a_directory_in_use_is_refused_until_its_user_dies(void **state) {
    struct place p = make_place();
    nmlp_dir_stage stage;
    nmlp_err err;
    int ready[2];
    char byte;
    (void)state;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        bool ok = nmlp_dir_stage_open(&stage, p.out, false, NULL) == NMLP_OK;
        put(p.partial, "layer", "x");
        if (ok) ok = write(ready[1], "x", 1) == 1;
        pause();
        _exit(ok ? 0 : 1);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    for (int resume = 0; resume < 2; resume++)
        nmlp_assert_fails(nmlp_dir_stage_open(&stage, p.out, resume, &err), &err, NMLP_E_IO, "another run", NULL);
    assert_true(has(p.partial, "layer"));
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    nmlp_assert_ok(nmlp_dir_stage_open(&stage, p.out, true, &err), &err);
    assert_true(has(p.partial, "layer"));
    nmlp_dir_stage_abort(&stage);
    close(ready[0]);
    close(ready[1]);
    nmlp_test_rmdir(p.dir);
}

/* As a kill leaves it right behind the exchange: the new output with the marker in it, the old one under its name. */
static void an_exchange_cut_short_is_finished_by_the_next_run(void **state) {
    struct place p = make_place();
    nmlp_dir_stage stage;
    nmlp_err err;
    struct stat info;
    char text[64];
    (void)state;
    assert_int_equal(mkdir(p.out, 0777), 0);
    assert_int_equal(mkdir(p.partial, 0777), 0);
    put(p.out, "new", "x");
    put(p.partial, "old", "x");
    assert_int_equal(stat(p.partial, &info), 0);
    snprintf(text, sizeof text, "replaces %ju %ju\n", (uintmax_t)info.st_dev, (uintmax_t)info.st_ino);
    put(p.out, NMLP_DIR_STAGE_MARKER, text);
    nmlp_assert_ok(nmlp_dir_stage_open(&stage, p.out, true, &err), &err);
    assert_false(has(p.partial, "old"));
    assert_true(has(p.out, "new"));
    assert_false(has(p.out, NMLP_DIR_STAGE_MARKER));
    put(p.partial, "newer", "x");
    nmlp_assert_ok(nmlp_dir_stage_commit(&stage, &err), &err);
    assert_true(has(p.out, "newer"));
    assert_false(has(p.out, "new"));
    assert_false(has(p.out, NMLP_DIR_STAGE_MARKER));
    assert_false(nmlp_file_exists(p.partial));
    /* Another directory under that name is not the one that was replaced. */
    assert_int_equal(mkdir(p.partial, 0777), 0);
    put(p.partial, "letter", "precious");
    put(p.out, NMLP_DIR_STAGE_MARKER, "replaces 1 2\n");
    nmlp_assert_fails(nmlp_dir_stage_open(&stage, p.out, false, &err), &err, NMLP_E_IO, "did not make it", NULL);
    assert_true(has(p.partial, "letter"));
    nmlp_test_rmdir(p.dir);
}

static nmlp_work_state state_of(const char *path, const char *magic, uint64_t fingerprint) {
    nmlp_file_map map;
    nmlp_work_state state;
    size_t payload_bytes = 0;
    nmlp_err err;
    nmlp_assert_ok(nmlp_work_file_open(&map, path, magic, fingerprint, &payload_bytes, &state, &err), &err);
    nmlp_file_map_close(&map);
    return state;
}

static void work_files_are_what_their_writer_wrote_or_nothing(void **state) {
    struct place p = make_place();
    nmlp_work_writer writer;
    nmlp_file_map map;
    nmlp_work_state found;
    size_t payload_bytes;
    nmlp_str text;
    nmlp_err err;
    (void)state;
    assert_int_equal(state_of(p.out, "MAGIC--1", 7), NMLP_WORK_ABSENT);
    nmlp_assert_ok(nmlp_work_writer_open(&writer, p.out, "MAGIC--1", 7, &err), &err);
    nmlp_assert_ok(nmlp_work_writer_put_padded(&writer, "head", 4, &err), &err);
    nmlp_assert_ok(nmlp_work_writer_put(&writer, "tail", 4, &err), &err);
    nmlp_assert_ok(nmlp_work_writer_commit(&writer, &err), &err);
    nmlp_assert_ok(nmlp_work_file_open(&map, p.out, "MAGIC--1", 7, &payload_bytes, &found, &err), &err);
    assert_int_equal(found, NMLP_WORK_VALID);
    nmlp_work_cursor cursor = {.at = map.data, .left_bytes = payload_bytes};
    assert_memory_equal(nmlp_work_take(&cursor, 4, true), "head", 4);
    assert_memory_equal(nmlp_work_take(&cursor, 4, false), "tail", 4);
    assert_true(cursor.left_bytes == 0 && !cursor.failed);
    assert_null(nmlp_work_take(&cursor, 1, false));
    assert_true(cursor.failed);
    cursor = (nmlp_work_cursor){.at = map.data, .left_bytes = payload_bytes};
    assert_null(nmlp_work_take(&cursor, SIZE_MAX, true));
    nmlp_file_map_close(&map);
    assert_int_equal(state_of(p.out, "MAGIC--1", 8), NMLP_WORK_OTHER);
    assert_int_equal(state_of(p.out, "MAGIC--2", 7), NMLP_WORK_DAMAGED);
    nmlp_str_init(&text);
    nmlp_assert_ok(nmlp_file_read(&text, p.out, 1 << 10, &err), &err);
    for (size_t i = 0; i < text.len; i++) {
        text.data[i] ^= 4;
        nmlp_test_write_file(p.out, text.data, text.len);
        assert_true(state_of(p.out, "MAGIC--1", 7) != NMLP_WORK_VALID);
        text.data[i] ^= 4;
        nmlp_test_write_file(p.out, text.data, i);
        assert_true(state_of(p.out, "MAGIC--1", 7) != NMLP_WORK_VALID);
    }
    nmlp_str_fini(&text);
    nmlp_test_rmdir(p.dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_directory_that_is_not_ours_stays),
        cmocka_unit_test(our_own_directory_is_emptied_or_kept),
        cmocka_unit_test(a_directory_in_use_is_refused_until_its_user_dies),
        cmocka_unit_test(an_exchange_cut_short_is_finished_by_the_next_run),
        cmocka_unit_test(work_files_are_what_their_writer_wrote_or_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
