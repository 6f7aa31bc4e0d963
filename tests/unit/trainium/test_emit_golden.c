/* Six emitted files, reviewed and kept: any change of the source shows as a difference here.
 * To accept a change: run with NMLP_UPDATE_GOLDEN=1, read the diff, commit. */
#include <stdlib.h>

#include "base/file.h"
#include "trainium/emit/emit.h"
#include "lib/testing.h"
#include "trainium/plan/kernel_table.h"

typedef struct golden {
    const char *file, *target, *kernel;
    nmlp_kernel_shape shape;
    const char *tiling; /* fixed, so that a better planner does not change the files */
} golden;

static const golden files[] = {
    {"xw_opt_trn1.py", "trn1", "xw-opt", {2048, 1000, 0, 3000}, "m=8,n=2,k=4"},
    {"xuv_fused_trn1.py", "trn1", "xuv-fused", {1000, 2048, 512, 4096}, "m=4,r=2,k=4,n=2"},
    {"xuv_trn2.py",
     "trn2",
     "xuv",
     {600, 1024, 256, 1000},
     "rows=512,x=3,xc=4,xl=4,cols=512,wkb=16,ring=2,on=2,tail=0,xcopies=1,oring=1"},
    {"mlp_dense_trn2.py",
     "trn2",
     "mlp",
     {512, 1024, 0, 2048},
     "rows=512,x=2,xc=8,ac=16,cols=512,wkb=16,ring=2,on=2,tail=0,xcopies=1,oring=1"},
    {"mlp_low_rank_decode_trn2.py",
     "trn2",
     "mlp",
     {1, 2048, 768, 8192},
     "rows=1,x=1,xc=16,ac=64,cols=256,wkb=16,ring=2,on=3,tail=2,xcopies=1,oring=2,okb=8"},
    {"mlp_taper_trn3.py",
     "trn3",
     "mlp",
     {100, 512, 640, 1100},
     "rows=100,x=1,xc=4,ac=9,cols=128,wkb=16,ring=2,on=2,taper=1,xcopies=1,oring=1,okb=2"},
    {"mlp_shared_trn1.py",
     "trn1",
     "mlp",
     {300, 1000, 300, 1500},
     "rows=300,x=1,xc=8,ac=4,cols=512,wkb=16,ring=2,on=2,tail=0,xcopies=1,oring=1,shared=1"},
};

static void emit(nmlp_str *text, const golden *g) {
    nmlp_machine m;
    nmlp_tiling tiling;
    nmlp_program *p = NULL;
    nmlp_err err = {0};
    nmlp_assert_ok(nmlp_machine_open(&m, g->target, &err), &err);
    nmlp_assert_ok(nmlp_tiling_parse(&tiling, g->tiling, &err), &err);
    nmlp_kernel_request rq = {.shape = g->shape, .dtype = NMLP_NC_BF16, .tiling = &tiling, .machine = &m};
    nmlp_assert_ok(nmlp_kernel_build(&p, nmlp_kernel_find(g->kernel, &err), &rq, &err), &err);
    nmlp_emit_options options = {.dialect = nmlp_dialect_for(&m), .machine = &m, .latency_us = -1};
    nmlp_str_init(text);
    nmlp_assert_ok(nmlp_emit_kernel(text, p, &options, NULL, &err), &err);
    nmlp_program_destroy(p);
}

static void emitted_files_equal_the_reviewed_ones(void **state) {
    (void)state;
    int different = 0;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char path[512];
        nmlp_str now, kept;
        nmlp_err err = {0};
        emit(&now, &files[i]);
        nmlp_str_init(&kept);
        snprintf(path, sizeof path, "%s/tests/golden/emit/%s", NMLP_TEST_ROOT, files[i].file);
        if (getenv("NMLP_UPDATE_GOLDEN"))
            nmlp_assert_ok(nmlp_file_write_text(path, nmlp_str_text(&now), now.len, &err), &err);
        nmlp_assert_ok(nmlp_file_read(&kept, path, 1 << 20, &err), &err);
        if (kept.len != now.len || memcmp(kept.data, now.data, now.len) != 0) {
            print_error("%s differs; NMLP_UPDATE_GOLDEN=1 writes what is emitted now\n", path);
            different++;
        }
        nmlp_str_fini(&now);
        nmlp_str_fini(&kept);
    }
    assert_int_equal(different, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(emitted_files_equal_the_reviewed_ones)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
