/* Matrices of a program as mathematics sees them: packed weights unpacked, a transposed result turned back. */
#ifndef NMLP_TRAINIUM_SIM_CHECK_MATRIX_H
#define NMLP_TRAINIUM_SIM_CHECK_MATRIX_H

#include "trainium/neuron/program.h"
#include "trainium/sim/values.h"

typedef struct nmlp_check_matrix {
    const char *data;
    nmlp_dtype dtype;
    int64_t rows, cols;
    void *owned; /* a copy, or NULL where `data` is the tensor itself */
} nmlp_check_matrix;

/* The tensor `name`, plane `plane` of it where it is packed. With `turned`, the transpose. False when there is none or
 * no memory (then err is set). Release with nmlp_check_matrix_fini. */
bool nmlp_check_matrix_find(nmlp_check_matrix *m, nmlp_values *v, const nmlp_program *p, const char *name,
                            int64_t plane, bool turned, nmlp_err *err);
void nmlp_check_matrix_fini(nmlp_check_matrix *m);

double nmlp_check_matrix_at(const nmlp_check_matrix *m, int64_t row, int64_t col);
void nmlp_check_matrix_row(const nmlp_check_matrix *m, int64_t row, float *out);
/* out[cols] = in[rows] m; `row` has room for cols values. */
void nmlp_check_left_product(const nmlp_check_matrix *m, const double *in, double *out, float *row);
/* out[rows] = m in[cols] */
void nmlp_check_right_product(const nmlp_check_matrix *m, const double *in, double *out, float *row);

#endif
