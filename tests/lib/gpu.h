/* What GPU tests share: saying loudly that there is no GPU. */
#ifndef NMLP_TESTS_GPU_H
#define NMLP_TESTS_GPU_H

#include <stdbool.h>

/* False, after saying why on stderr, where no GPU is usable: the test then calls skip(). */
bool nmlp_test_gpu(void);

#endif
