#define NMLP_TRAIN_F64
#include "train/ops_internal.h"

const nmlp_ops *nmlp_ops_select(const char *isa) {
    (void)isa;
    return &nmlp_ops_f64;
}

const nmlp_products *nmlp_products_select(const char *isa) {
    (void)isa;
    return &nmlp_ops_f64.products;
}
