#include "eval/result.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/file.h"
#include "base/hash64.h"
#include "neuronmlp/version.h"
#include "text/tokenizer.h"

enum { PATH_BYTES = 4096 };

static void to_text(char out[NMLP_HASH_TEXT], uint64_t hash) { snprintf(out, NMLP_HASH_TEXT, "%016" PRIx64, hash); }

static nmlp_status hash_file(uint64_t *hash, const char *path, nmlp_err *err) {
    nmlp_file_map map;
    NMLP_RETURN_IF_FAILED(nmlp_file_map_open(&map, path, err));
    *hash = nmlp_hash64(map.data, map.bytes, *hash);
    nmlp_file_map_close(&map);
    return NMLP_OK;
}

nmlp_status nmlp_file_hash(char out[NMLP_HASH_TEXT], const char *path, nmlp_err *err) {
    uint64_t hash = 0;
    NMLP_RETURN_IF_FAILED(hash_file(&hash, path, err));
    to_text(out, hash);
    return NMLP_OK;
}

nmlp_status nmlp_provenance_read(nmlp_provenance *p, const nmlp_engine *engine, nmlp_err *err) {
    const nmlp_checkpoint *c = &nmlp_engine_model(engine)->checkpoint;
    char path[PATH_BYTES];
    uint64_t hash = 0;
    *p = (nmlp_provenance){.version = NMLP_VERSION_STRING};
    snprintf(p->isa, sizeof p->isa, "%s", nmlp_engine_isa(engine));
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, c->dir, "config.json", err));
    NMLP_RETURN_IF_FAILED(hash_file(&hash, path, err));
    for (size_t i = 0; i < c->n_files; i++) hash = nmlp_hash64(c->files[i].map.data, c->files[i].map.bytes, hash);
    to_text(p->model_hash, hash);
    NMLP_RETURN_IF_FAILED(nmlp_tokenizer_path(path, sizeof path, c->dir, err));
    return nmlp_file_hash(p->tokenizer_hash, path, err);
}

void nmlp_provenance_put(nmlp_json_writer *w, const nmlp_provenance *p) {
    nmlp_json_put_string(w, "model_hash", p->model_hash);
    nmlp_json_put_string(w, "tokenizer_hash", p->tokenizer_hash);
    nmlp_json_put_string(w, "isa", p->isa);
    nmlp_json_put_string(w, "version", p->version);
}

void nmlp_ppl_put(nmlp_json_writer *w, const nmlp_ppl_result *r) {
    nmlp_json_put_int(w, "tokens", r->n_tokens);
    nmlp_json_put_int(w, "covered_tokens", r->n_covered);
    nmlp_json_put_int(w, "scored_tokens", r->n_scored);
    nmlp_json_put_int(w, "words", r->n_words);
    nmlp_json_put_int(w, "bytes", r->n_bytes);
    nmlp_json_put_number(w, "nll", r->nll);
    nmlp_json_put_number(w, "nll_sum", r->nll_sum);
    nmlp_json_put_number(w, "ppl", r->ppl);
    nmlp_json_put_number(w, "word_ppl", r->word_ppl);
    nmlp_json_put_number(w, "bits_per_byte", r->bits_per_byte);
    nmlp_json_put_int(w, "ctx", r->ctx);
    nmlp_json_put_int(w, "stride", r->stride);
    nmlp_json_put_number(w, "seconds", r->seconds);
    nmlp_json_put_number(w, "tok_s", r->seconds > 0 ? (double)r->n_run / r->seconds : 0);
}

static void put_details(nmlp_json_writer *w, const nmlp_choice_result *r) {
    nmlp_json_begin_array(w, "pred");
    for (int64_t i = 0; i < r->n; i++) nmlp_json_put_int(w, NULL, r->pred[i]);
    nmlp_json_end_array(w);
    nmlp_json_begin_array(w, "pred_norm");
    for (int64_t i = 0; i < r->n; i++) nmlp_json_put_int(w, NULL, r->pred_norm[i]);
    nmlp_json_end_array(w);
    nmlp_json_begin_array(w, "loglik");
    for (int64_t i = 0; i < r->n; i++) {
        nmlp_json_begin_array(w, NULL);
        for (int64_t c = r->first[i]; c < r->first[i + 1]; c++) nmlp_json_put_number(w, NULL, r->loglik[c]);
        nmlp_json_end_array(w);
    }
    nmlp_json_end_array(w);
}

void nmlp_choice_put(nmlp_json_writer *w, const nmlp_choice_result *r, bool details) {
    nmlp_json_put_int(w, "n", r->n);
    nmlp_json_put_number(w, "acc", r->acc);
    nmlp_json_put_number(w, "acc_stderr", r->acc_stderr);
    nmlp_json_put_number(w, "acc_norm", r->acc_norm);
    nmlp_json_put_number(w, "acc_norm_stderr", r->acc_norm_stderr);
    nmlp_json_put_int(w, "truncated", r->n_truncated);
    nmlp_json_put_int(w, "tokens_run", r->n_run);
    nmlp_json_put_int(w, "tokens_without_sharing", r->n_whole);
    nmlp_json_put_number(w, "seconds", r->seconds);
    nmlp_json_put_number(w, "tok_s", r->seconds > 0 ? (double)r->n_run / r->seconds : 0);
    if (details) put_details(w, r);
}

void nmlp_task_describe(nmlp_str *out, const nmlp_task *task, nmlp_bos bos) {
    static const char *const words[] = {[NMLP_BOS_NONE] = "no BOS",
                                        [NMLP_BOS_TEMPLATE] = "special tokens as the tokenizer's template adds them",
                                        [NMLP_BOS_ALWAYS] = "BOS in front"};
    nmlp_str_printf(out,
                    "%s; context and continuation encoded together, continuation tokens = those past the encoded "
                    "context without white space at its end; acc = argmax "
                    "of summed log-likelihood; acc_norm divides by the UTF-8 bytes of %s; zero-shot; context \"%s\", "
                    "continuation \"%s\"",
                    words[bos], task->length, task->context, task->continuation);
}
