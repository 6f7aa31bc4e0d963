/* How many rows of prompts a step may take beside decoding sequences. A single prompt should not be noticed by the
 * others: a step that carries some of it takes at most about 1.5 times one that does not. The more prompts wait for
 * each sequence that decodes, the more of the time is theirs, so that a crowd gets under way together. Costs differ by
 * orders of magnitude between devices and models, and between few rows and many, so they are measured. */
#ifndef NMLP_ENGINE_PROMPT_PACE_H
#define NMLP_ENGINE_PROMPT_PACE_H

#include <stdint.h>

enum { NMLP_PACE_SIZES = 12 };

/* Seconds; 0: not known yet. */
typedef struct nmlp_prompt_pace {
    double decode_s[NMLP_PACE_SIZES]; /* a step without prompts, of up to 2^i sequences */
    double row_s;                     /* what a row of a single prompt adds */
    double crowd_row_s;               /* the same of many prompts at once, whose rows are many and cost less */
} nmlp_prompt_pace;

/* For a step with n_decoding sequences that decode, and n_prompts that want to. Without the former, or before any time
 * is known, there is no limit. */
int64_t nmlp_prompt_pace_rows(const nmlp_prompt_pace *pace, int64_t n_decoding, int64_t n_prompts);
/* After a step: what it held, of how many prompts, and how long it took. */
void nmlp_prompt_pace_note(nmlp_prompt_pace *pace, int64_t n_decoding, int64_t n_prompts, int64_t n_prompt_rows,
                           double seconds);

#endif
