/* Models and texts for the fault campaign. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/file.h"
#include "faults/campaign.h"
#include "gguf/gguf_export.h"
#include "model/model.h"
#include "model/preset.h"

/* The vocabulary of synth's byte-level tokenizer fits. */
enum { HIDDEN = 32, INTERMEDIATE = 64, LAYERS = 2, VOCAB = 320 };

int fault_model_write(const char *dir, double ratio) {
    int64_t params, bytes;
    nmlp_err err = {0};
    nmlp_config c;
    nmlp_synth_options options = {.ratio = ratio, .tile = 4, .dtype = NMLP_DTYPE_BF16};
    nmlp_status st = nmlp_preset_find(&c, "qwen3-1.7b", &err);
    c.hidden = HIDDEN;
    c.intermediate = INTERMEDIATE;
    c.n_layers = LAYERS;
    c.n_heads = 2;
    c.n_kv_heads = 1;
    c.head_dim = 16;
    c.rope_dim = 16;
    c.vocab = VOCAB;
    c.max_positions = 64;
    if (st == NMLP_OK) st = nmlp_synth_write(dir, &c, &options, &params, &bytes, &err);
    if (st == NMLP_OK) return 0;
    fprintf(stderr, "neuronmlp synth: %s\n", err.message);
    return 1;
}

static const char question[] =
    "{\"id\": \"a\", \"question\": \"The cat sat on\", \"choices\": [\"the mat\", \"of\"], \"gold\": 0}\n";

static int write_gguf(const char *dir, const char *path, nmlp_err *err) {
    nmlp_model model;
    nmlp_gguf_result result;
    if (nmlp_model_open(&model, dir, err) != NMLP_OK) return 1;
    nmlp_status st = nmlp_gguf_export(&model, path, "q8_0", NULL, &result, err);
    nmlp_model_close(&model);
    return st != NMLP_OK;
}

void fault_inputs_make(const fault_inputs *in) {
    char path[FAULT_PATH_BYTES + 64], text[8192];
    nmlp_err err = {0};
    for (size_t i = 0; i < sizeof text; i++) text[i] = "the cat sat on a mat; "[(i * i / 7 + i) % 22];
    snprintf(path, sizeof path, "%s/dense", in->work);
    int bad = fault_model_write(path, 0);
    snprintf(path, sizeof path, "%s/factors", in->work);
    bad |= fault_model_write(path, 0.3);
    snprintf(path, sizeof path, "%s/text", in->work);
    bad |= nmlp_file_write_text(path, text, sizeof text, &err) != NMLP_OK;
    snprintf(path, sizeof path, "%s/suite", in->work);
    bad |= mkdir(path, 0777) != 0;
    snprintf(path, sizeof path, "%s/suite/ptb.test.txt", in->work);
    bad |= nmlp_file_write_text(path, text, 400, &err) != NMLP_OK;
    snprintf(path, sizeof path, "%s/suite/openbookqa_test.jsonl", in->work);
    bad |= nmlp_file_write_text(path, question, sizeof question - 1, &err) != NMLP_OK;
    char dense[FAULT_PATH_BYTES + 64];
    snprintf(dense, sizeof dense, "%s/dense", in->work);
    snprintf(path, sizeof path, "%s/model.gguf", in->work);
    bad |= write_gguf(dense, path, &err);
    if (!bad) return;
    fprintf(stderr, "fault campaign: inputs cannot be made: %s\n", err.message);
    exit(3);
}
