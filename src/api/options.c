#include "api/options.h"

#include <string.h>

#include "neuronmlp/version.h"
#include "service/loaded_model.h"

/* A size beyond this is memory that was never initialised. */
enum { STRUCT_MAX_BYTES = 4096 };

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

void nmlp_options_give(void *theirs, size_t their_bytes, const void *ours, size_t our_bytes) {
    if (!theirs || their_bytes < sizeof their_bytes) return;
    memset(theirs, 0, their_bytes);
    memcpy(theirs, ours, smaller(their_bytes, our_bytes));
    memcpy(theirs, &their_bytes, sizeof their_bytes);
}

nmlp_status nmlp_options_take(void *ours, size_t our_bytes, const void *theirs, const char *name, nmlp_err *err) {
    const unsigned char *bytes = theirs;
    size_t their_bytes;
    if (!theirs) return NMLP_OK;
    memcpy(&their_bytes, theirs, sizeof their_bytes);
    if (their_bytes <= sizeof their_bytes || their_bytes > STRUCT_MAX_BYTES)
        return nmlp_fail(err, NMLP_E_ARG, "%s was not initialised; call %s_init(&it, sizeof it) first", name, name);
    for (size_t i = our_bytes; i < their_bytes; i++)
        if (bytes[i])
            return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s has a field that version %s of the library does not know",
                             name, NMLP_VERSION_STRING);
    memcpy(ours, theirs, smaller(their_bytes, our_bytes));
    memcpy(ours, &our_bytes, sizeof our_bytes);
    return NMLP_OK;
}

nmlp_status nmlp_api_check_conversion(const char *function, const char *model_dir, const char *out_dir, int n_threads,
                                      nmlp_err *err) {
    if (!model_dir || !out_dir) return nmlp_fail(err, NMLP_E_ARG, "%s needs the directories of both models", function);
    if (n_threads >= 0 && n_threads <= NMLP_LOAD_THREADS_MAX) return NMLP_OK;
    return nmlp_fail_field(err, NMLP_E_ARG, "n_threads", "is %d; it must be 0 to %d", n_threads, NMLP_LOAD_THREADS_MAX);
}

static bool pass_on(void *ctx, const char *stage, double done, double total, const char *unit) {
    const nmlp_api_progress *forward = ctx;
    return !forward->on_progress || forward->on_progress(forward->ctx, stage, done, total, unit) == 0;
}

nmlp_progress nmlp_api_progress_of(nmlp_api_progress *forward) {
    return (nmlp_progress){.update = pass_on, .ctx = forward};
}
