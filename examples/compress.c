/* Remove a fraction of a model's MLP parameters; Ctrl-C cancels:  ./compress models/tiny /tmp/tiny-20 0.2 */
#include <neuronmlp/compression.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static volatile sig_atomic_t cancelled;
static void cancel(int signal_number) { cancelled = signal_number; }

static int show(void *ctx, const char *stage, double done, double total, const char *unit) {
    (void)ctx;
    fprintf(stderr, "\r%-24s %3.0f %% of %.0f %s ", stage, total > 0 ? 100 * done / total : 0, total, unit);
    return cancelled; /* anything but 0 ends the call; the output is then not written */
}

int main(int argc, char **argv) {
    nmlp_err err;
    nmlp_compression_options options;
    nmlp_compression_result result;
    if (argc != 4) {
        fprintf(stderr, "usage: %s MODEL OUTPUT RATIO\n", argv[0]);
        return 2;
    }
    signal(SIGINT, cancel);
    nmlp_compression_options_init(&options, sizeof options);
    nmlp_compression_result_init(&result, sizeof result);
    options.ratio = atof(argv[3]);
    options.calibration_tokens = 2048; /* few, for a quick look; the default is 65536 */
    options.heldout_tokens = 512;
    options.on_progress = show;
    nmlp_status st = nmlp_compress_model(argv[1], argv[2], &options, &result, &err);
    fprintf(stderr, "\n");
    if (st != NMLP_OK) {
        fprintf(stderr, "%s\n", err.message);
        return st == NMLP_E_INTERRUPTED ? 3 : 1;
    }
    printf("MLP parameters %lld -> %lld\n", (long long)result.mlp_params_before, (long long)result.mlp_params_after);
    printf("held-out perplexity %.2f -> %.2f\n", result.heldout_ppl_before, result.heldout_ppl_after);
}
