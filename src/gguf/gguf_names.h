/* Names and row orders of the two worlds: GGUF's "blk.3.attn_q.weight" is Hugging Face's
 * "model.layers.3.self_attn.q_proj.weight". Files of the llama architecture keep the rows of q and k of every head in
 * pairs that are rotated together, (0, D/2), (1, D/2+1), …; Hugging Face keeps them in halves. */
#ifndef NMLP_GGUF_GGUF_NAMES_H
#define NMLP_GGUF_GGUF_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NMLP_GGUF_NAME_MAX = 128 };

/* Which heads' rows are in pairs. */
typedef enum nmlp_gguf_rows { NMLP_GGUF_ROWS_PLAIN, NMLP_GGUF_ROWS_OF_Q, NMLP_GGUF_ROWS_OF_K } nmlp_gguf_rows;

/* False for a name that is not known. `rows` says what the tensor is; only llama files have it in another order. */
bool nmlp_gguf_name_to_hf(char hf[NMLP_GGUF_NAME_MAX], const char *gguf, nmlp_gguf_rows *rows);
bool nmlp_gguf_name_from_hf(char gguf[NMLP_GGUF_NAME_MAX], const char *hf, nmlp_gguf_rows *rows);

/* The row in halves that stands at `row` in pairs, heads of `head_dim` rows; and back. */
int64_t nmlp_gguf_row_in_halves(int64_t row, int64_t head_dim);
int64_t nmlp_gguf_row_in_pairs(int64_t row, int64_t head_dim);

#endif
