/* How many allocations the program made so far, and one that fails on purpose: malloc and friends, wrapped by the
 * linker (tests/CMakeLists.txt lists the programs that are linked so; only they may use this). */
#ifndef NMLP_TESTS_ALLOC_COUNT_H
#define NMLP_TESTS_ALLOC_COUNT_H

int nmlp_test_allocations(void);
/* The allocation number `n` from now on (1: the next one) fails; 0: none does. */
void nmlp_test_fail_allocation(int n);

#endif
