/* How many rows of prompts a step may take beside decoding sequences. A single prompt should hardly be noticed by the
 * others: a step that carries some of it takes at most about 1.5 times one that does not, where its rows and not the
 * mere presence of a prompt take the time. The more prompts wait for each sequence that decodes, the more of the time
 * is theirs, so that a crowd gets under way together. Costs differ by orders of magnitude between devices and models,
 * and between few rows and many, so they are measured. */
#ifndef NMLP_ENGINE_PROMPT_PACE_H
#define NMLP_ENGINE_PROMPT_PACE_H

#include <stdint.h>

enum { NMLP_PACE_SIZES = 12 };

/* What rows of prompts add to a step: fixed_s + rows * row_s. Steps take somewhat more rows and somewhat fewer by
 * turns; the difference of the two kinds tells one from the other. */
typedef struct nmlp_pace_cost {
    double row_s; /* 0: not known yet */
    double fixed_s;
    double rows[2], seconds[2]; /* means of the last steps, of fewer rows and of more */
    int turn;                   /* the next step takes fewer rows (0) or more (1) */
} nmlp_pace_cost;

typedef struct nmlp_prompt_pace {
    double decode_s[NMLP_PACE_SIZES]; /* a step without prompts, of up to 2^i sequences; 0: not known yet */
    nmlp_pace_cost single;            /* of one prompt */
    double crowd_row_s; /* a row of many prompts at once, which are many and cost less; 0: not known yet */
} nmlp_prompt_pace;

/* For a step with n_decoding sequences that decode, and n_prompts that want to. Without the former, or before any time
 * is known, there is no limit. */
int64_t nmlp_prompt_pace_rows(const nmlp_prompt_pace *pace, int64_t n_decoding, int64_t n_prompts);
/* After a step: what it held, of how many prompts, and how long it took. */
void nmlp_prompt_pace_note(nmlp_prompt_pace *pace, int64_t n_decoding, int64_t n_prompts, int64_t n_prompt_rows,
                           double seconds);

#endif
