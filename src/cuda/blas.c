#include "cuda/blas.h"

#include <dlfcn.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"

#if defined(__has_include)
#if __has_include(<cublasLt.h>)
#define HAVE_CUBLASLT 1
#include <cublasLt.h>
#endif
#endif

#if HAVE_CUBLASLT

enum { SHAPES_MAX = 512, WAYS_MAX = 8, TRIALS = 3 };

/* Matmuls of fewer operations are not measured: 20 us of an H200's time. */
static const double MEASURED_OPERATIONS = 1.5e10;

struct library {
    void *handle;
    __typeof__(&cublasLtCreate) create;
    __typeof__(&cublasLtDestroy) destroy;
    __typeof__(&cublasLtMatmulDescCreate) desc_create;
    __typeof__(&cublasLtMatmulDescSetAttribute) desc_set;
    __typeof__(&cublasLtMatmulDescDestroy) desc_destroy;
    __typeof__(&cublasLtMatrixLayoutCreate) layout_create;
    __typeof__(&cublasLtMatrixLayoutDestroy) layout_destroy;
    __typeof__(&cublasLtMatmulPreferenceCreate) preference_create;
    __typeof__(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    __typeof__(&cublasLtMatmulPreferenceDestroy) preference_destroy;
    __typeof__(&cublasLtMatmulAlgoGetHeuristic) heuristic;
    __typeof__(&cublasLtMatmul) matmul;
};

/* One shape of matmul, made ready. */
struct shape {
    nmlp_cuda_gemm key; /* pointers NULL */
    cublasLtMatrixLayout_t w;
    cublasLtMatrixLayout_t x;
    cublasLtMatrixLayout_t y;
    cublasLtMatmulAlgo_t algo;
};

struct nmlp_cuda_blas {
    struct library lib;
    cublasLtHandle_t handle; /* NULL: no library */
    cublasLtMatmulDesc_t desc;
    void *workspace;
    bool measures; /* what the library offers, else its first offer is taken */
    struct shape shapes[SHAPES_MAX];
    int n_shapes;
    int next_evicted;
    int last; /* found: steps ask for shapes in the order in which they were made */
};

static void *open_library(void) {
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
    void *handle = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !handle; i++)
        handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return handle;
}

bool nmlp_cuda_blas_available(void) {
    void *handle = open_library();
    if (handle) (void)dlclose(handle);
    return handle != NULL;
}

static bool load_symbols(struct library *lib) {
    lib->handle = open_library();
    if (!lib->handle) return false;
    struct {
        const char *name;
        void *to;
    } symbols[] = {{"cublasLtCreate", &lib->create},
                   {"cublasLtDestroy", &lib->destroy},
                   {"cublasLtMatmulDescCreate", &lib->desc_create},
                   {"cublasLtMatmulDescSetAttribute", &lib->desc_set},
                   {"cublasLtMatmulDescDestroy", &lib->desc_destroy},
                   {"cublasLtMatrixLayoutCreate", &lib->layout_create},
                   {"cublasLtMatrixLayoutDestroy", &lib->layout_destroy},
                   {"cublasLtMatmulPreferenceCreate", &lib->preference_create},
                   {"cublasLtMatmulPreferenceSetAttribute", &lib->preference_set},
                   {"cublasLtMatmulPreferenceDestroy", &lib->preference_destroy},
                   {"cublasLtMatmulAlgoGetHeuristic", &lib->heuristic},
                   {"cublasLtMatmul", &lib->matmul}};
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *found = dlsym(lib->handle, symbols[i].name);
        if (!found) return false;
        memcpy(symbols[i].to, &found, sizeof found);
    }
    return true;
}

nmlp_status nmlp_cuda_blas_create(nmlp_cuda_blas **out, void *workspace, bool use_library, nmlp_err *err) {
    cublasOperation_t transposed = CUBLAS_OP_T;
    nmlp_cuda_blas *b = *out = nmlp_mem_new(1, sizeof *b, err);
    if (!b) return NMLP_E_NOMEM;
    b->workspace = workspace;
    if (!use_library || !load_symbols(&b->lib)) return NMLP_OK;
    if (b->lib.create(&b->handle) != CUBLAS_STATUS_SUCCESS) b->handle = NULL;
    if (b->handle && (b->lib.desc_create(&b->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS ||
                      b->lib.desc_set(b->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed) !=
                          CUBLAS_STATUS_SUCCESS)) {
        (void)b->lib.destroy(b->handle);
        b->handle = NULL;
    }
    return NMLP_OK;
}

static void destroy_layouts(const struct library *lib, struct shape *s) {
    if (s->w) (void)lib->layout_destroy(s->w);
    if (s->x) (void)lib->layout_destroy(s->x);
    if (s->y) (void)lib->layout_destroy(s->y);
}

void nmlp_cuda_blas_destroy(nmlp_cuda_blas *b) {
    if (!b) return;
    for (int i = 0; i < b->n_shapes; i++) destroy_layouts(&b->lib, &b->shapes[i]);
    if (b->desc) (void)b->lib.desc_destroy(b->desc);
    if (b->handle) (void)b->lib.destroy(b->handle);
    if (b->lib.handle) (void)dlclose(b->lib.handle);
    nmlp_mem_free(b);
}

bool nmlp_cuda_blas_has_library(const nmlp_cuda_blas *b) { return b->handle != NULL; }

void nmlp_cuda_blas_measure(nmlp_cuda_blas *b, bool on) { b->measures = on; }

static cublasStatus_t run_way(const nmlp_cuda_blas *b, const struct shape *s, const nmlp_cuda_gemm *g,
                              const cublasLtMatmulAlgo_t *algo, cudaStream_t stream) {
    float one = 1.0f;
    float beta = g->accumulate ? 1.0f : 0.0f;
    return b->lib.matmul(b->handle, b->desc, &one, g->w, s->w, g->x, s->x, &beta, g->y, s->y, g->y, s->y, algo,
                         b->workspace, NMLP_CUDA_BLAS_WORKSPACE_BYTES, stream);
}

typedef struct stopwatch {
    cudaEvent_t begin;
    cudaEvent_t end;
} stopwatch;

/* Milliseconds, or INFINITY where the way does not work. */
static float time_way(const nmlp_cuda_blas *b, const struct shape *s, const nmlp_cuda_gemm *g,
                      const cublasLtMatmulAlgo_t *algo, stopwatch watch, cudaStream_t stream) {
    float ms = 0;
    bool ok = cudaEventRecord(watch.begin, stream) == cudaSuccess &&
              run_way(b, s, g, algo, stream) == CUBLAS_STATUS_SUCCESS &&
              cudaEventRecord(watch.end, stream) == cudaSuccess && cudaEventSynchronize(watch.end) == cudaSuccess &&
              cudaEventElapsedTime(&ms, watch.begin, watch.end) == cudaSuccess;
    return ok ? ms : INFINITY;
}

/* Ways without a workspace leave K whole and add its products in the same order, so the choice between them changes no
 * bit of the result. Where the library prefers one with a workspace, that is kept. A way's first run, which loads its
 * code, does not count. */
static int fastest_way(const nmlp_cuda_blas *b, const struct shape *s, const nmlp_cuda_gemm *g,
                       const cublasLtMatmulHeuristicResult_t *ways, int n, cudaStream_t stream) {
    stopwatch watch = {0};
    float best_ms = INFINITY;
    int best = 0;
    if (ways[0].workspaceSize == 0 && cudaEventCreate(&watch.begin) == cudaSuccess &&
        cudaEventCreate(&watch.end) == cudaSuccess) {
        for (int i = 0; i < n * TRIALS; i++) {
            float ms = ways[i % n].workspaceSize ? INFINITY : time_way(b, s, g, &ways[i % n].algo, watch, stream);
            if (i < n || ms >= best_ms) continue;
            best_ms = ms;
            best = i % n;
        }
    }
    if (watch.begin) (void)cudaEventDestroy(watch.begin);
    if (watch.end) (void)cudaEventDestroy(watch.end);
    return best;
}

/* Measuring overwrites y, and a graph being captured has no time. */
static bool should_measure(const nmlp_cuda_blas *b, const nmlp_cuda_gemm *g, cudaStream_t stream) {
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusActive;
    return b->measures && 2.0 * g->s * g->n * g->k >= MEASURED_OPERATIONS &&
           cudaStreamIsCapturing(stream, &capture) == cudaSuccess && capture == cudaStreamCaptureStatusNone;
}

/* Row-major y = x w^T is column-major y^T = w x^T: w^T is what lies in memory, so it is the transposed operand. */
static bool make_layouts(const struct library *lib, struct shape *s, const nmlp_cuda_gemm *g) {
    return lib->layout_create(&s->w, CUDA_R_16BF, (uint64_t)g->k, (uint64_t)g->n, g->w_pitch) ==
               CUBLAS_STATUS_SUCCESS &&
           lib->layout_create(&s->x, CUDA_R_16BF, (uint64_t)g->k, (uint64_t)g->s, g->x_pitch) ==
               CUBLAS_STATUS_SUCCESS &&
           lib->layout_create(&s->y, g->y_is_f32 ? CUDA_R_32F : CUDA_R_16BF, (uint64_t)g->n, (uint64_t)g->s,
                              g->y_pitch) == CUBLAS_STATUS_SUCCESS;
}

/* Up to `most` ways the library knows, its preferred one first; returns how many. */
static int list_ways(const nmlp_cuda_blas *b, const struct shape *s, cublasLtMatmulHeuristicResult_t *ways, int most) {
    const struct library *lib = &b->lib;
    cublasLtMatmulPreference_t preference = NULL;
    size_t room = NMLP_CUDA_BLAS_WORKSPACE_BYTES;
    int n = 0;
    bool ok =
        lib->preference_create(&preference) == CUBLAS_STATUS_SUCCESS &&
        lib->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room) ==
            CUBLAS_STATUS_SUCCESS &&
        lib->heuristic(b->handle, b->desc, s->w, s->x, s->y, s->y, preference, most, ways, &n) == CUBLAS_STATUS_SUCCESS;
    if (preference) (void)lib->preference_destroy(preference);
    return ok ? n : 0;
}

static bool make_shape(const nmlp_cuda_blas *b, struct shape *s, const nmlp_cuda_gemm *g, cudaStream_t stream) {
    const struct library *lib = &b->lib;
    cublasLtMatmulHeuristicResult_t ways[WAYS_MAX];
    int n = make_layouts(lib, s, g) ? list_ways(b, s, ways, should_measure(b, g, stream) ? WAYS_MAX : 1) : 0;
    if (n) {
        s->algo = ways[n > 1 ? fastest_way(b, s, g, ways, n, stream) : 0].algo;
        return true;
    }
    destroy_layouts(lib, s);
    return false;
}

static const struct shape *find_shape(nmlp_cuda_blas *b, const nmlp_cuda_gemm *g, cudaStream_t stream) {
    nmlp_cuda_gemm key = *g;
    key.x = key.w = NULL;
    key.y = NULL;
    for (int i = 0; i < b->n_shapes; i++) {
        int at = (b->last + i) % b->n_shapes;
        if (memcmp(&b->shapes[at].key, &key, sizeof key) != 0) continue;
        b->last = at;
        return &b->shapes[at];
    }
    struct shape made = {0};
    if (!make_shape(b, &made, g, stream)) return NULL;
    made.key = key;
    int at = b->n_shapes < SHAPES_MAX ? b->n_shapes++ : b->next_evicted++ % SHAPES_MAX; /* the oldest goes */
    destroy_layouts(&b->lib, &b->shapes[at]);
    b->shapes[at] = made;
    b->last = at;
    return &b->shapes[at];
}

nmlp_status nmlp_cuda_blas_run(nmlp_cuda_blas *b, const nmlp_cuda_gemm *g, cudaStream_t stream, nmlp_err *err) {
    const struct shape *s = b->handle ? find_shape(b, g, stream) : NULL;
    if (!s) return NMLP_CUDA_CHECK(nmlp_cuda_launch_gemm(g, stream), "launching a matmul", err);
    cublasStatus_t code = run_way(b, s, g, &s->algo, stream);
    if (code == CUBLAS_STATUS_SUCCESS) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_IO, "cuBLASLt: a matmul of [%d,%d] by [%d,%d] failed with status %d", g->s, g->k, g->n,
                     g->k, (int)code);
}

#else /* the toolkit came without cuBLASLt's header */

struct nmlp_cuda_blas {
    void *workspace;
};

nmlp_status nmlp_cuda_blas_create(nmlp_cuda_blas **out, void *workspace, bool use_library, nmlp_err *err) {
    (void)use_library;
    *out = nmlp_mem_new(1, sizeof **out, err);
    if (!*out) return NMLP_E_NOMEM;
    (*out)->workspace = workspace;
    return NMLP_OK;
}

void nmlp_cuda_blas_destroy(nmlp_cuda_blas *b) { nmlp_mem_free(b); }
void nmlp_cuda_blas_measure(nmlp_cuda_blas *b, bool on) {
    (void)b;
    (void)on;
}
bool nmlp_cuda_blas_available(void) { return false; }
bool nmlp_cuda_blas_has_library(const nmlp_cuda_blas *b) {
    (void)b;
    return false;
}

nmlp_status nmlp_cuda_blas_run(nmlp_cuda_blas *b, const nmlp_cuda_gemm *g, cudaStream_t stream, nmlp_err *err) {
    (void)b;
    return NMLP_CUDA_CHECK(nmlp_cuda_launch_gemm(g, stream), "launching a matmul", err);
}

#endif
