#include "eval/suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash64.h"
#include "eval/choice.h"
#include "eval/perplexity.h"
#include "eval/questions.h"

enum { PATH_BYTES = 4096, TEXT_MAX_BYTES = 1 << 30 };

/* Our names, below text/ or choice/ or in the folder itself, then the names of the authors' releases. */
#define TEXT_FILES(name) "text/" name, name
#define CHOICE_FILES(name) "choice/" name, name

#define WIKITEXT2                                                                                                      \
    {"wikitext2", true, {TEXT_FILES("wikitext2.test.txt"), "wiki.test.raw", "wikitext-2-raw/wiki.test.raw"}}
#define PTB                                                                                                            \
    {                                                                                                                  \
        "ptb", true, { TEXT_FILES("ptb.test.txt") }                                                                    \
    }
#define C4                                                                                                             \
    {                                                                                                                  \
        "c4", true, { TEXT_FILES("c4.sample.txt"), TEXT_FILES("c4.validation.txt") }                                   \
    }
#define ARC_E                                                                                                          \
    {"arc_easy", false, {CHOICE_FILES("arc_easy_test.jsonl"), "ARC-Easy-Test.jsonl", "ARC-Easy/ARC-Easy-Test.jsonl"}}
#define ARC_C                                                                                                          \
    {"arc_challenge",                                                                                                  \
     false,                                                                                                            \
     {CHOICE_FILES("arc_challenge_test.jsonl"), "ARC-Challenge-Test.jsonl", "ARC-Challenge/ARC-Challenge-Test.jsonl"}}
#define OBQA                                                                                                           \
    {"openbookqa", false, {CHOICE_FILES("openbookqa_test.jsonl"), "OpenBookQA-V1-Sep2018/Data/Main/test.jsonl"}}
#define HELLASWAG                                                                                                      \
    {                                                                                                                  \
        "hellaswag", false, { CHOICE_FILES("hellaswag_val.jsonl") }                                                    \
    }
#define WINOGRANDE {"winogrande", false, {CHOICE_FILES("winogrande_dev.jsonl"), "winogrande_1.1/dev.jsonl"}}
#define MATHQA {"mathqa", false, {CHOICE_FILES("mathqa_test.jsonl"), "MathQA/test.json"}}
#define PIQA {"piqa", false, {CHOICE_FILES("piqa_valid.jsonl"), "physicaliqa-train-dev/dev.jsonl", "piqa/valid.jsonl"}}

static const nmlp_suite suites[] = {
    {"paper",
     "the nine data sets of the paper (ARC is ARC-Challenge)",
     {WIKITEXT2, PTB, C4, ARC_C, OBQA, HELLASWAG, WINOGRANDE, MATHQA, PIQA},
     9},
    {"all",
     "the paper's nine and ARC-Easy",
     {WIKITEXT2, PTB, C4, ARC_E, ARC_C, OBQA, HELLASWAG, WINOGRANDE, MATHQA, PIQA},
     10},
};

const nmlp_suite *nmlp_suite_find(const char *name) {
    for (size_t i = 0; i < sizeof suites / sizeof suites[0]; i++) {
        if (strcmp(suites[i].name, name) == 0) return &suites[i];
    }
    return NULL;
}

/* What running one item needs. */
struct item_run {
    const nmlp_suite_item *item;
    const nmlp_engine *engine;
    const nmlp_tokenizer *tokenizer;
    const nmlp_suite_options *options;
    nmlp_ppl_options ppl;
    char path[PATH_BYTES];
};

/* False, with a note, when none of the item's files is there. */
static bool find_data(struct item_run *r, nmlp_eval_cell *cell) {
    for (size_t i = 0; i < NMLP_SUITE_FILES_MAX && r->item->files[i]; i++) {
        if (nmlp_path_join(r->path, sizeof r->path, r->options->data_dir, r->item->files[i], NULL) == NMLP_OK &&
            nmlp_file_exists(r->path))
            return true;
    }
    snprintf(cell->note, sizeof cell->note, "skipped: no %s in the data folder", r->item->files[1]);
    return false;
}

static nmlp_status make_key(char key[NMLP_STATE_KEY], const struct item_run *r, const nmlp_provenance *p,
                            nmlp_err *err) {
    char data_hash[NMLP_HASH_TEXT];
    nmlp_str protocol;
    nmlp_status st = NMLP_OK;
    nmlp_str_init(&protocol);
    NMLP_TRY(nmlp_file_hash(data_hash, r->path, err));
    if (r->item->is_ppl) {
        nmlp_ppl_describe(&protocol, &r->ppl);
    } else {
        nmlp_task_describe(&protocol, nmlp_task_find(r->item->name), r->options->task_bos);
        nmlp_str_printf(&protocol, "; limit %lld", (long long)r->options->limit);
    }
    NMLP_TRY(nmlp_str_status(&protocol, err));
    snprintf(key, NMLP_STATE_KEY, "%s model %s tokenizer %s data %s protocol %016llx isa %s version %s", r->item->name,
             p->model_hash, p->tokenizer_hash, data_hash,
             (unsigned long long)nmlp_hash64(protocol.data, protocol.len, 0), p->isa, p->version);
out:
    nmlp_str_fini(&protocol);
    return st;
}

static nmlp_status run_text(nmlp_eval_cell *cell, const struct item_run *r, nmlp_err *err) {
    nmlp_ppl_result result;
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_status st = nmlp_file_read(&text, r->path, TEXT_MAX_BYTES, err);
    if (st == NMLP_OK)
        st = nmlp_perplexity(&result, r->engine, r->tokenizer, nmlp_str_text(&text), text.len, &r->ppl, err);
    nmlp_str_fini(&text);
    if (st != NMLP_OK) return st;
    *cell = (nmlp_eval_cell){.present = true,
                             .is_ppl = true,
                             .n = result.n_tokens,
                             .ppl = result.ppl,
                             .nll = result.nll,
                             .word_ppl = result.word_ppl,
                             .bits_per_byte = result.bits_per_byte,
                             .seconds = result.seconds};
    return NMLP_OK;
}

static nmlp_status run_task(nmlp_eval_cell *cell, const struct item_run *r, nmlp_err *err) {
    nmlp_questions questions;
    nmlp_choice_result result;
    nmlp_questions_options reading = {.limit = r->options->limit};
    nmlp_choice_options running = {
        .bos = r->options->task_bos, .stage = r->item->name, .progress = r->options->progress};
    NMLP_RETURN_IF_FAILED(nmlp_questions_load(&questions, nmlp_task_find(r->item->name), r->path, &reading, err));
    nmlp_status st = nmlp_choice_eval(&result, r->engine, r->tokenizer, &questions, &running, err);
    nmlp_questions_free(&questions);
    if (st != NMLP_OK) return st;
    *cell = (nmlp_eval_cell){.present = true,
                             .n = result.n,
                             .acc = result.acc,
                             .acc_stderr = result.acc_stderr,
                             .acc_norm = result.acc_norm,
                             .acc_norm_stderr = result.acc_norm_stderr,
                             .seconds = result.seconds};
    nmlp_choice_result_free(&result);
    return NMLP_OK;
}

/* The file of results is the leading process's: what it finds there all take. */
static nmlp_status find_result(bool *found, nmlp_eval_cell *cell, const nmlp_eval_state *state, const char *key,
                               const nmlp_process_group *group, nmlp_err *err) {
    const nmlp_eval_cell *had = nmlp_group_leads(group) ? nmlp_eval_state_find(state, key) : NULL;
    *found = had != NULL;
    NMLP_RETURN_IF_FAILED(nmlp_group_broadcast(group, found, sizeof *found, err));
    if (!*found) return NMLP_OK;
    if (had) *cell = *had;
    return nmlp_group_broadcast(group, cell, sizeof *cell, err);
}

static nmlp_status run_item(nmlp_eval_cell *cell, struct item_run *r, const nmlp_provenance *provenance,
                            nmlp_err *err) {
    char key[NMLP_STATE_KEY];
    nmlp_eval_state *state = r->options->state;
    const nmlp_process_group *group = nmlp_engine_group(r->engine);
    if (r->item->is_ppl) {
        r->ppl = (nmlp_ppl_options){.ctx = r->options->ctx,
                                    .max_tokens = r->options->max_tokens,
                                    .bos = r->options->bos,
                                    .stage = r->item->name,
                                    .progress = r->options->progress};
        NMLP_RETURN_IF_FAILED(nmlp_ppl_options_check(&r->ppl, &nmlp_engine_model(r->engine)->config, err));
    }
    *cell = (nmlp_eval_cell){.is_ppl = r->item->is_ppl};
    if (!find_data(r, cell)) return NMLP_OK;
    if (state) {
        NMLP_RETURN_IF_FAILED(make_key(key, r, provenance, err));
        bool found;
        NMLP_RETURN_IF_FAILED(find_result(&found, cell, state, key, group, err));
        if (found) return NMLP_OK;
    }
    NMLP_RETURN_IF_FAILED(r->item->is_ppl ? run_text(cell, r, err) : run_task(cell, r, err));
    return state && nmlp_group_leads(group) ? nmlp_eval_state_put(state, key, cell, err) : NMLP_OK;
}

nmlp_status nmlp_suite_run(nmlp_suite_row *row, const nmlp_suite *suite, const nmlp_engine *engine,
                           const nmlp_tokenizer *tokenizer, const nmlp_suite_options *options, nmlp_err *err) {
    if (!nmlp_file_is_dir(options->data_dir))
        return nmlp_fail(err, NMLP_E_IO, "%s: is not a folder", options->data_dir);
    NMLP_RETURN_IF_FAILED(nmlp_provenance_read(&row->provenance, engine, err));
    for (size_t i = 0; i < suite->n_items; i++) {
        struct item_run run = {.item = &suite->items[i], .engine = engine, .tokenizer = tokenizer, .options = options};
        nmlp_status st = run_item(&row->cells[i], &run, &row->provenance, err);
        if (st != NMLP_OK) {
            nmlp_fail_context(err, "%s", suite->items[i].name);
            return st;
        }
    }
    return NMLP_OK;
}

double nmlp_suite_mean_acc(const nmlp_suite_row *row, const nmlp_suite *suite, bool norm) {
    double sum = 0;
    int n = 0;
    for (size_t i = 0; i < suite->n_items; i++) {
        const nmlp_eval_cell *c = &row->cells[i];
        if (!c->present || c->is_ppl) continue;
        sum += norm ? c->acc_norm : c->acc;
        n++;
    }
    return n ? sum / n : NAN;
}
