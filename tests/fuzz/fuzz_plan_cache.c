/* Any bytes behind the key of a line of the plan cache, and in the lines around it: passed over, or a choice of kernels
 * that exist. The first byte says whether the key stands there. */
#include <string.h>

#include "base/file.h"
#include "fuzz/in_memory.h"
#include "trainium/plan/plan_cache.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { KEY_BYTES = 128 };

/* The key as the writer makes it: what stands in front of the winner. */
static size_t make_key(char key[KEY_BYTES], const nmlp_machine *machine, const nmlp_kernel_request *rq) {
    nmlp_kernel_plan plan = {.winner = {.kernel = "xw-tiled"}};
    nmlp_err err;
    nmlp_str text;
    nmlp_str_init(&text);
    const char *path = in_memory_file("cache", "", 0);
    if (nmlp_plan_cache_add(path, &plan, machine, NMLP_PLAN_XW, rq, &err) != NMLP_OK ||
        nmlp_file_read(&text, path, 4096, &err) != NMLP_OK)
        abort();
    const char *end = strstr(nmlp_str_text(&text), "xw-tiled");
    if (!end || end - text.data >= KEY_BYTES) abort();
    size_t len = (size_t)(end - text.data);
    memcpy(key, text.data, len);
    nmlp_str_fini(&text);
    return len;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static nmlp_machine machine;
    static char key[KEY_BYTES];
    static size_t key_len;
    nmlp_kernel_request rq = {.shape = {128, 256, 0, 256}, .dtype = NMLP_NC_BF16, .machine = &machine};
    nmlp_kernel_plan plan = {0};
    nmlp_err err;
    nmlp_str text;
    if (!key_len) {
        if (nmlp_machine_open(&machine, "trn1", &err) != NMLP_OK) abort();
        key_len = make_key(key, &machine, &rq);
    }
    if (size < 1) return 0;
    nmlp_str_init(&text);
    if (data[0] & 1) nmlp_str_append(&text, key, key_len);
    nmlp_str_append(&text, data + 1, size - 1);
    if (data[0] & 2) nmlp_str_append(&text, key, key_len);
    const char *path = in_memory_file("cache", nmlp_str_text(&text), text.len);
    nmlp_str_fini(&text);
    if (nmlp_plan_cache_find(path, &plan, &machine, NMLP_PLAN_XW, &rq, &err) != NMLP_OK || !plan.cached) return 0;
    if (!nmlp_kernel_find(plan.winner.kernel, &err)) abort();
    if (plan.runner_up.kernel && !nmlp_kernel_find(plan.runner_up.kernel, &err)) abort();
    return 0;
}
