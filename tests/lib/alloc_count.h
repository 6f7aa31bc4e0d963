/* How many allocations the program made so far: malloc and friends, wrapped by the linker (tests/CMakeLists.txt lists
 * the programs that are linked so; only they may use this). */
#ifndef NMLP_TESTS_ALLOC_COUNT_H
#define NMLP_TESTS_ALLOC_COUNT_H

int nmlp_test_allocations(void);

#endif
