/* The readable form of a tile program. Printing and parsing are inverse: parse(print(p)) prints the same text.
 *
 *   program xw
 *   param S = 1000
 *   tensor xT input bf16 [512, 1000]
 *   buffer acc psum fp32 [128; 512] copies 2
 *   buffer res sbuf bf16 [128; 8, 512] copies 1 managed
 *   begin
 *     # one strip of rows at a time
 *     for m in 8 {                                   (or: for sequential m in 8)
 *       alloc acc
 *       for k in min(8, cdiv(1000 - 128*m, 128)) {
 *         dma_load x[0 :+ 128; k, 0 :+ 512] = xT[128*k :+ 128, 128*m :+ min(128, 1000 - 128*m)] queue 0
 *         nc_matmul acc[0 :+ 128; 0 :+ 512] stationary x[…] moving w[…] accumulate k
 *       }
 *       if first m { memset res[…] = 0 on vector }
 *       …
 *     }
 *   end
 *
 * A range is `start :+ count`; a bare start is one element. Accumulate is `never`, `always` or the loops whose first
 * iteration overwrites. `stack T by R` after an HBM rectangle repeats it T times, R rows apart. */
#ifndef NMLP_TRAINIUM_NEURON_PROGRAM_TEXT_H
#define NMLP_TRAINIUM_NEURON_PROGRAM_TEXT_H

#include "base/str.h"
#include "trainium/neuron/program.h"

/* Appends the text; check `text` with nmlp_str_status. */
void nmlp_program_print(const nmlp_program *program, nmlp_str *text);
/* One instruction on one line, as errors name it. */
void nmlp_program_print_instr(const nmlp_program *program, const nmlp_instr *instr, nmlp_str *text);
/* Errors carry `where` and the line. */
nmlp_status nmlp_program_parse(nmlp_program **out, const char *where, const char *text, size_t len, nmlp_err *err);

#endif
