/* Results had so far, in a JSON file, so that a long evaluation goes on where it stopped.
 *
 * A result is found again only under the same key: data set, hashes of model, tokenizer and data, protocol, kernel set,
 * version. */
#ifndef NMLP_EVAL_STATE_H
#define NMLP_EVAL_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/json_write.h"
#include "base/status.h"

enum { NMLP_CELL_NOTE = 256, NMLP_STATE_KEY = 256 };

/* One model on one data set. */
typedef struct nmlp_eval_cell {
    bool present;
    bool is_ppl;
    bool resumed;              /* taken from a state */
    char note[NMLP_CELL_NOTE]; /* why it is absent */
    int64_t n;                 /* questions, or tokens */
    double ppl, nll, word_ppl, bits_per_byte;
    double acc, acc_stderr, acc_norm, acc_norm_stderr;
    double seconds;
} nmlp_eval_cell;

typedef struct nmlp_eval_state_entry {
    char key[NMLP_STATE_KEY];
    nmlp_eval_cell cell;
} nmlp_eval_state_entry;

typedef struct nmlp_eval_state {
    const char *path; /* borrowed */
    nmlp_eval_state_entry *entries;
    size_t n;
    size_t capacity;
} nmlp_eval_state;

/* Reads the file where it exists; an absent one is an empty state. */
nmlp_status nmlp_eval_state_open(nmlp_eval_state *state, const char *path, nmlp_err *err);
void nmlp_eval_state_close(nmlp_eval_state *state);
/* NULL when there is none. */
const nmlp_eval_cell *nmlp_eval_state_find(const nmlp_eval_state *state, const char *key);
/* Adds the result and writes the file, whole and at once. */
nmlp_status nmlp_eval_state_put(nmlp_eval_state *state, const char *key, const nmlp_eval_cell *cell, nmlp_err *err);

/* The cell's members, as state files and reports hold them. */
void nmlp_eval_cell_put(nmlp_json_writer *w, const nmlp_eval_cell *cell);

#endif
