/* Any bytes as a task file: refused, or a task whose strings can be read. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "eval/task.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    nmlp_task task;
    nmlp_arena arena;
    nmlp_err err;
    nmlp_arena_init(&arena);
    if (nmlp_task_parse(&task, &arena, (const char *)data, size, "fuzz", &err) == NMLP_OK &&
        (!task.name || !strlen(task.name) || !task.context || !task.continuation ||
         task.n_layouts > NMLP_TASK_LAYOUTS_MAX))
        abort();
    nmlp_arena_fini(&arena);
    return 0;
}
