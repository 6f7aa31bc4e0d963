/* Every job takes all threads of its pool: the models of tests are so small that one thread would do all of their work.
 * The linker puts this between the library and its own nmlp_pool_width (--wrap). */
#include "base/pool.h"

int __wrap_nmlp_pool_width(const nmlp_pool *pool, double serial_ns);

int __wrap_nmlp_pool_width(const nmlp_pool *pool, double serial_ns) {
    (void)serial_ns;
    return nmlp_pool_threads(pool);
}
