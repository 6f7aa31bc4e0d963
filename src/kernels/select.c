/* The kernel sets there are, fastest first, and the choice between them. */
#include <string.h>

#include "kernels/kernels_int.h"

static const nmlp_kernels *const sets[] = {&nmlp_kernels_ref};

enum { N_SETS = sizeof sets / sizeof sets[0], NAMES_MAX = 64 };

static void list_names(char names[NAMES_MAX]) {
    names[0] = '\0';
    for (int i = 0; i < N_SETS; i++) {
        if (i) strcat(names, ", ");
        strcat(names, sets[i]->name);
    }
}

nmlp_status nmlp_kernels_select(const nmlp_kernels **out, const nmlp_cpu *cpu, const char *isa, nmlp_err *err) {
    bool any = !isa || strcmp(isa, "auto") == 0;
    char names[NAMES_MAX];
    *out = NULL;
    for (int i = 0; i < N_SETS; i++) {
        if (!any && strcmp(isa, sets[i]->name) != 0) continue;
        if (sets[i]->supported(cpu)) {
            *out = sets[i];
            return NMLP_OK;
        }
        if (!any) return nmlp_fail(err, NMLP_E_UNSUPPORTED, "kernel set \"%s\": this CPU lacks it", isa);
    }
    list_names(names);
    return nmlp_fail(err, NMLP_E_ARG, "kernel set \"%s\" is unknown, expected auto, %s", isa ? isa : "auto", names);
}

const char *nmlp_kernels_name(const nmlp_kernels *kernels) { return kernels->name; }
