/* How many rows of prompts a step may take beside decoding sequences. A single prompt should not be noticed by the
 * others: a step that carries some of it takes at most about 1.6 times one that does not. The more prompts wait for
 * each sequence that decodes, the more of the time is theirs, so that a crowd gets under way together. Costs differ by
 * orders of magnitude between devices and models, so they are measured. */
#ifndef NMLP_ENGINE_PROMPT_PACE_H
#define NMLP_ENGINE_PROMPT_PACE_H

#include <stdint.h>

typedef struct nmlp_prompt_pace {
    double decode_s; /* a step without prompts, of the most sequences seen lately; 0: none yet */
    double row_s;    /* what a row of a prompt adds; 0: not known yet */
} nmlp_prompt_pace;

/* For a step with n_decoding sequences that decode, and n_prompts that want to. Without the former, or before any time
 * is known, there is no limit. */
int64_t nmlp_prompt_pace_rows(const nmlp_prompt_pace *pace, int64_t n_decoding, int64_t n_prompts);
/* After a step: what it held and how long it took. */
void nmlp_prompt_pace_note(nmlp_prompt_pace *pace, int64_t n_decoding, int64_t n_prompt_rows, double seconds);

#endif
