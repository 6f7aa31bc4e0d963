#include "service/memory_need.h"

/* Keys and values in bf16, or twice that: what is certain. */
enum { CACHE_ELEM_BYTES = 2 };

double nmlp_memory_work_bytes(const nmlp_config *c, const nmlp_memory_work *work) {
    int64_t positions = work->positions < c->max_positions ? work->positions : c->max_positions;
    double sequences = work->sequences > 0 ? (double)work->sequences : 1;
    double cache = 2.0 * CACHE_ELEM_BYTES * (double)c->n_layers * (double)c->n_kv_heads * (double)c->head_dim *
                   (double)positions * sequences;
    if (work->calib_tokens <= 0) return cache;
    /* Of one layer at a time: moments of what its MLP reads and of what its last matrix reads, in f64, their
       eigenvectors and what LAPACK needs beside them; of all tokens what enters the layer and what leaves it, in f32.
       Measured on models of I 1024 and 2048: 3.6 to 4.2 I^2 in all. */
    double h = (double)c->hidden, i = (double)c->intermediate;
    return cache + 8 * (2 * h * h + 3.5 * i * i) + 2 * 4 * h * (double)work->calib_tokens;
}
