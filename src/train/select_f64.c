#define NMLP_TRAIN_F64
#include "train/ops_internal.h"

const nmlp_train_ops *nmlp_train_ops_select(const char *isa) {
    (void)isa;
    return &nmlp_train_ops_f64;
}

const nmlp_train_products *nmlp_train_products_select(const char *isa) {
    (void)isa;
    return &nmlp_train_ops_f64.products;
}
