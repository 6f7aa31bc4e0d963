/* A process group whose members are threads of the test, so that collectives are tested without a launcher. */
#ifndef NMLP_TESTS_THREAD_GROUP_H
#define NMLP_TESTS_THREAD_GROUP_H

#include "base/process_group.h"

enum { THREAD_GROUP_MAX = 5 };

/* One member's work. */
typedef void thread_group_work(void *ctx, const nmlp_process_group *group);

/* Runs work on `size` threads and waits; returns how many collectives the first member made. */
int64_t thread_group_run(int size, thread_group_work *work, void *ctx);

#endif
