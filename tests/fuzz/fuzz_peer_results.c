/* Any bytes as results of llama-bench or llama-batched-bench: refused, or numbers that can be compared and named. */
#include <math.h>
#include <string.h>

#include "bench/peer_results.h"
#include "fuzz/in_memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    nmlp_peer_results results;
    nmlp_err err = {0};
    char text[NMLP_PEER_TEST_MAX];
    if (nmlp_peer_results_load(&results, in_memory_file("results", data, size), &err) != NMLP_OK) {
        if (!err.message[0]) abort();
        return 0;
    }
    for (size_t i = 0; i < results.n; i++) {
        const nmlp_peer_result *row = &results.rows[i];
        if (!isfinite(row->tokens_s) || row->batch < 0 || row->prompt < 0 || row->generate < 0) abort();
        nmlp_peer_result_describe(text, row);
        if (strlen(text) >= sizeof text) abort();
        nmlp_peer_test test = {.decode = row->decode, .batch = row->batch, .prompt = row->prompt, .threads = 1};
        if (!nmlp_peer_results_find(&results, test)) abort();
    }
    nmlp_peer_results_fini(&results);
    return 0;
}
