#include "trainium/neuron/machine.h"

#include <string.h>

#include "base/file.h"
#include "trainium/neuron/machine_builtin.h"

enum { MACHINE_FILE_MAX_BYTES = 1 << 20 };

static const char *const key_names[] = {
#define KEY_NAME(key, low, high, meaning) #key,
    NMLP_MACHINE_KEYS(KEY_NAME)
#undef KEY_NAME
};

static const char *const key_meanings[] = {
#define KEY_MEANING(key, low, high, meaning) meaning,
    NMLP_MACHINE_KEYS(KEY_MEANING)
#undef KEY_MEANING
};

static const size_t key_offsets[] = {
#define KEY_OFFSET(key, low, high, meaning) offsetof(nmlp_machine, key),
    NMLP_MACHINE_KEYS(KEY_OFFSET)
#undef KEY_OFFSET
};

const char *nmlp_machine_key_name(nmlp_machine_key key) { return key_names[key]; }

const char *nmlp_machine_key_meaning(nmlp_machine_key key) { return key_meanings[key]; }

bool nmlp_machine_key_find(const char *name, nmlp_machine_key *key) {
    for (int k = 0; k < NMLP_MACHINE_N_KEYS; k++) {
        if (strcmp(key_names[k], name) != 0) continue;
        *key = (nmlp_machine_key)k;
        return true;
    }
    return false;
}

void nmlp_machine_print(const nmlp_machine *m, nmlp_str *out) {
    nmlp_str_printf(out, "# key value [tag] source; docs/simulator.md explains the keys.\nname %s\n\n", m->name);
    for (int k = 0; k < NMLP_MACHINE_N_KEYS; k++)
        nmlp_str_printf(out, "%-26s %-13.10g [%s] %s\n", key_names[k], nmlp_machine_value(m, (nmlp_machine_key)k),
                        nmlp_origin_tag_name(m->origin[k].tag), m->origin[k].source);
}

double nmlp_machine_value(const nmlp_machine *machine, nmlp_machine_key key) {
    double value;
    memcpy(&value, (const char *)machine + key_offsets[key], sizeof value);
    return value;
}

void nmlp_machine_set(nmlp_machine *machine, nmlp_machine_key key, double value) {
    memcpy((char *)machine + key_offsets[key], &value, sizeof value);
}

const char *nmlp_origin_tag_name(nmlp_origin_tag tag) {
    static const char *const names[] = {"documented", "figure", "third-party", "fitted", "measured"};
    return names[tag];
}

const char *nmlp_machine_builtin_name(size_t index) {
    return index < nmlp_machine_n_builtins ? nmlp_machine_builtins[index].name : NULL;
}

const char *nmlp_machine_builtin_text(const char *name) {
    for (size_t i = 0; i < nmlp_machine_n_builtins; i++)
        if (strcmp(nmlp_machine_builtins[i].name, name) == 0) return nmlp_machine_builtins[i].text;
    return NULL;
}

nmlp_status nmlp_machine_open(nmlp_machine *machine, const char *target, nmlp_err *err) {
    const char *text = nmlp_machine_builtin_text(target);
    if (text) return nmlp_machine_parse(machine, target, text, strlen(text), err);

    if (!nmlp_file_exists(target)) {
        /* A word that cannot be meant as a file is a wrong word. */
        nmlp_status missing = nmlp_fail(err, strpbrk(target, "/.") ? NMLP_E_MISSING : NMLP_E_ARG,
                                        "target \"%s\" is neither a built-in machine nor a file", target);
        nmlp_fail_hint(err, "built in: trn1, trn2, trn3; or the path of a machine file (docs/simulator.md)");
        return missing;
    }
    nmlp_status st = NMLP_OK;
    nmlp_str content;
    nmlp_str_init(&content);
    NMLP_TRY(nmlp_file_read(&content, target, MACHINE_FILE_MAX_BYTES, err));
    NMLP_TRY(nmlp_machine_parse(machine, target, nmlp_str_text(&content), content.len, err));
out:
    nmlp_str_fini(&content);
    return st;
}

double nmlp_machine_peak_flops_per_ns(const nmlp_machine *machine, bool fp32) {
    double macs = machine->partitions * machine->stationary_max;
    return 2.0 * macs * machine->tensor_clock_ghz / (fp32 ? machine->tensor_fp32_passes : 1.0);
}

int64_t nmlp_machine_psum_banks(const nmlp_machine *m, bool with_dma_transposes) {
    return (int64_t)m->psum_banks - (with_dma_transposes && m->generation >= 3 ? 1 : 0);
}

/* FNV-1a. */
uint64_t nmlp_machine_hash(const nmlp_machine *m) {
    uint64_t h = 1469598103934665603u;
    for (int k = 0; k < NMLP_MACHINE_N_KEYS; k++) {
        double v = nmlp_machine_value(m, (nmlp_machine_key)k);
        unsigned char bytes[sizeof v];
        memcpy(bytes, &v, sizeof v);
        for (size_t i = 0; i < sizeof v; i++) h = (h ^ bytes[i]) * 1099511628211u;
    }
    return h;
}
