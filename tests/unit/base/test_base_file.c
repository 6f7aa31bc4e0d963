/* Files: maps, and output that is complete or absent. */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dir_stage.h"
#include "base/file.h"
#include "lib/testing.h"

static int count_entries(const char *dir) {
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d)) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void write_in(const char *dir, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    nmlp_test_write_file(path, text, strlen(text));
}

static void missing_and_special_files_are_named(void **state) {
    nmlp_file_map map;
    nmlp_err err;
    (void)state;
    nmlp_assert_fails(nmlp_file_map_open(&map, "/no/such", &err), &err, NMLP_E_IO, "/no/such", "No such file", NULL);
    nmlp_assert_fails(nmlp_file_map_open(&map, "/tmp", &err), &err, NMLP_E_IO, "/tmp", "regular", NULL);
    char dir[256], pipe[512];
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(pipe, sizeof pipe, "%s/pipe", dir);
    assert_int_equal(mkfifo(pipe, 0600), 0); /* nobody writes: a plain open would wait forever */
    nmlp_assert_fails(nmlp_file_map_open(&map, pipe, &err), &err, NMLP_E_IO, "pipe", "regular", NULL);
    nmlp_test_rmdir(dir);
}

static void uncommitted_output_leaves_the_old_file(void **state) {
    char dir[256];
    char path[512];
    nmlp_file_writer writer;
    nmlp_str text;
    nmlp_err err;
    (void)state;
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/out", dir);
    write_in(dir, "out", "old");
    nmlp_assert_ok(nmlp_file_writer_open(&writer, path, &err), &err);
    nmlp_assert_ok(nmlp_file_writer_write(&writer, "newer", 5, &err), &err);
    nmlp_str_init(&text);
    nmlp_assert_ok(nmlp_file_read(&text, path, 100, &err), &err);
    assert_string_equal(nmlp_str_text(&text), "old");
    nmlp_file_writer_abort(&writer);
    assert_int_equal(count_entries(dir), 1);
    nmlp_assert_ok(nmlp_file_write_text(path, "newer", 5, &err), &err);
    nmlp_str_clear(&text);
    nmlp_assert_ok(nmlp_file_read(&text, path, 100, &err), &err);
    assert_string_equal(nmlp_str_text(&text), "newer");
    assert_int_equal(count_entries(dir), 1);
    nmlp_assert_fails(nmlp_file_read(&text, path, 3, &err), &err, NMLP_E_LIMIT, path, NULL);
    nmlp_str_fini(&text);
    nmlp_test_rmdir(dir);
}

/* What a shell hands over as <(command): no size is known before the end. */
static void a_pipe_is_read_to_its_end_and_not_beyond_the_limit(void **state) {
    enum { NUMBERS_BYTES = 192894 }; /* seq 1 34000 | wc -c */
    (void)state;
    for (size_t short_by = 0; short_by < 2; short_by++) {
        nmlp_str text;
        nmlp_err err;
        char path[32];
        FILE *numbers = popen("seq 1 34000", "r");
        assert_non_null(numbers);
        snprintf(path, sizeof path, "/dev/fd/%d", fileno(numbers));
        nmlp_str_init(&text);
        nmlp_status st = nmlp_input_read(&text, path, NUMBERS_BYTES - short_by, &err);
        pclose(numbers);
        if (short_by) {
            nmlp_assert_fails(st, &err, NMLP_E_LIMIT, path, "192893", NULL);
        } else {
            nmlp_assert_ok(st, &err);
            assert_int_equal(text.len, NUMBERS_BYTES);
            assert_memory_equal(nmlp_str_text(&text) + NUMBERS_BYTES - 12, "33999\n34000\n", 12);
        }
        nmlp_str_fini(&text);
    }
}

static void links_and_pipes_are_written_through(void **state) {
    char dir[256], file[512], link[512], pipe[512], got[8] = {0};
    struct stat info;
    nmlp_err err;
    (void)state;
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(file, sizeof file, "%s/file", dir);
    snprintf(link, sizeof link, "%s/link", dir);
    snprintf(pipe, sizeof pipe, "%s/pipe", dir);
    write_in(dir, "file", "old");
    assert_int_equal(symlink("file", link), 0);
    nmlp_assert_ok(nmlp_file_write_text(link, "new", 3, &err), &err);
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_assert_ok(nmlp_file_read(&text, file, 100, &err), &err);
    assert_string_equal(nmlp_str_text(&text), "new");
    nmlp_str_fini(&text);

    assert_int_equal(mkfifo(pipe, 0600), 0);
    int reader = open(pipe, O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    nmlp_assert_ok(nmlp_file_write_text(pipe, "bytes", 5, &err), &err);
    assert_int_equal(read(reader, got, sizeof got), 5);
    assert_string_equal(got, "bytes");
    close(reader);
    assert_int_equal(lstat(pipe, &info), 0);
    assert_true(S_ISFIFO(info.st_mode));
    nmlp_assert_fails(nmlp_file_write_text(dir, "x", 1, &err), &err, NMLP_E_IO, dir, "is a directory", NULL);
    assert_int_equal(count_entries(dir), 3);
    nmlp_test_rmdir(dir);
}

static void a_full_disk_is_reported(void **state) {
    nmlp_file_writer writer = {.fd = -1};
    nmlp_err err;
    (void)state;
    if (access("/dev/full", W_OK) != 0) skip();
    FILE *full = fopen("/dev/full", "w");
    writer.fd = fileno(full);
    writer.path = (char *)(uintptr_t)"out";
    char block[4096] = {0};
    nmlp_assert_fails(nmlp_file_writer_write(&writer, block, sizeof block, &err), &err, NMLP_E_IO, "out", "space",
                      NULL);
    assert_non_null(strstr(err.hint, "disk is full"));
    fclose(full);
}

static void a_staged_directory_replaces_the_old_one_at_once(void **state) {
    char dir[256];
    char out[512];
    nmlp_dir_stage stage;
    nmlp_err err;
    (void)state;
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(out, sizeof out, "%s/model/", dir);
    for (int round = 0; round < 2; round++) {
        nmlp_assert_ok(nmlp_dir_stage_open(&stage, out, false, &err), &err);
        write_in(stage.temp_path, round ? "second" : "first", "x");
        assert_int_equal(nmlp_file_exists(out), round);
        nmlp_assert_ok(nmlp_dir_stage_commit(&stage, &err), &err);
    }
    assert_int_equal(count_entries(dir), 1);
    assert_int_equal(count_entries(out), 1);
    snprintf(out, sizeof out, "%s/model/second", dir);
    assert_true(nmlp_file_exists(out));
    snprintf(out, sizeof out, "%s/model", dir);
    nmlp_assert_ok(nmlp_dir_stage_open(&stage, out, false, &err), &err);
    nmlp_dir_stage_abort(&stage);
    assert_int_equal(count_entries(dir), 1);
    nmlp_test_rmdir(dir);
}

static void an_output_that_cannot_be_made_is_refused(void **state) {
    nmlp_dir_stage stage;
    nmlp_err err;
    (void)state;
    nmlp_assert_fails(nmlp_dir_stage_open(&stage, "/proc/nowhere/out", false, &err), &err, NMLP_E_IO, "/proc/nowhere",
                      NULL);
    nmlp_assert_fails(nmlp_dir_stage_open(&stage, "/etc/passwd", false, &err), &err, NMLP_E_IO, "not a directory",
                      NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_and_special_files_are_named),
        cmocka_unit_test(uncommitted_output_leaves_the_old_file),
        cmocka_unit_test(a_pipe_is_read_to_its_end_and_not_beyond_the_limit),
        cmocka_unit_test(links_and_pipes_are_written_through),
        cmocka_unit_test(a_full_disk_is_reported),
        cmocka_unit_test(a_staged_directory_replaces_the_old_one_at_once),
        cmocka_unit_test(an_output_that_cannot_be_made_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
