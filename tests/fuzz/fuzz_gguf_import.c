/* Any bytes as a GGUF file that becomes a model directory: refused with nothing left behind, or a directory that
 * opens. */
#include <sys/stat.h>

#include "fuzz/small_model.h"
#include "gguf/gguf_import.h"
#include "model/model.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void remove_out(const char *dir) {
    static const char *const names[] = {"config.json",     "model.safetensors",     "tokenizer.json",
                                        "tokenizer.model", "tokenizer_config.json", "README.md"};
    char path[256];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    if (rmdir(dir) != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char dir[128], partial[160];
    nmlp_gguf_result result;
    nmlp_model model;
    nmlp_tokenizer *tokenizer;
    nmlp_err err = {0};
    snprintf(dir, sizeof dir, "%s/out", in_memory_dir());
    snprintf(partial, sizeof partial, "%s.partial", dir);
    nmlp_status st = nmlp_gguf_import(in_memory_file("in.gguf", data, size), dir, NULL, &result, &err);
    if (access(partial, F_OK) == 0 || (st != NMLP_OK && (!err.message[0] || access(dir, F_OK) == 0))) abort();
    if (st != NMLP_OK) return 0;
    if (nmlp_model_open(&model, dir, &err) != NMLP_OK) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    nmlp_model_close(&model);
    if (nmlp_tokenizer_load(&tokenizer, dir, &err) == NMLP_OK) nmlp_tokenizer_destroy(tokenizer);
    remove_out(dir);
    return 0;
}
