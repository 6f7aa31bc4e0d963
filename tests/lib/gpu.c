#include "lib/gpu.h"

#include "cuda/cuda.h"
#include "lib/testing.h"

bool nmlp_test_gpu(void) {
    nmlp_cuda_info info;
    nmlp_err err;
    nmlp_status st = nmlp_cuda_probe(&info, &err);
    if (st == NMLP_OK) return true;
    assert_int_equal(st, NMLP_E_UNSUPPORTED);
    assert_true(strlen(err.message) > 0 && strlen(err.hint) > 0);
    fprintf(stderr, "SKIPPED, NO GPU: %s\n", err.message);
    return false;
}
