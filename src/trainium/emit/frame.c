/* Around the body: imports, constants, signature, docstring, return. */
#include <ctype.h>
#include <inttypes.h>
#include <string.h>

#include "trainium/emit/frame.h"
#include "trainium/neuron/program_cores.h"

/* Is `name` a word of `text`? */
static bool mentions(const char *text, const char *name) {
    size_t len = strlen(name);
    for (const char *at = strstr(text, name); at; at = strstr(at + 1, name)) {
        bool left = at > text && (isalnum((unsigned char)at[-1]) || at[-1] == '_');
        bool right = isalnum((unsigned char)at[len]) || at[len] == '_';
        if (!left && !right) return true;
    }
    return false;
}

void nmlp_emit_frame_formula(const nmlp_emit_source *src, nmlp_str *out) {
    nmlp_emit_math math = nmlp_emit_math_of(src->p);
    const char *gate = !math.gate_low ? "w_gate" : math.shared ? "u_shared v_gate" : "u_gate v_gate";
    const char *up = !math.up_low ? "w_up" : math.shared ? "u_shared v_up" : "u_up v_up";
    switch (math.op) {
    case NMLP_EMIT_OP_XW: nmlp_str_puts(out, "y = x w"); break;
    case NMLP_EMIT_OP_XUV: nmlp_str_puts(out, "y = (x u) v"); break;
    case NMLP_EMIT_OP_GATED:
    case NMLP_EMIT_OP_MLP:
        if (math.epsilon > 0) nmlp_str_printf(out, "n = x / sqrt(mean(x^2) + %g), ", math.epsilon);
        const char *x = math.epsilon > 0 ? "n" : "x";
        nmlp_str_printf(out, "y = %s%ssilu(%s %s) * (%s %s)", math.residual ? "x + " : "",
                        math.op == NMLP_EMIT_OP_MLP ? "(" : "", x, gate, x, up);
        if (math.op == NMLP_EMIT_OP_MLP) nmlp_str_puts(out, math.down_low ? ") u_down v_down" : ") w_down");
        break;
    case NMLP_EMIT_OP_UNKNOWN: nmlp_str_printf(out, "tile program %s", src->p->name); break;
    }
}

/* What main() and the functions around it need. */
static void put_main_imports(nmlp_emit_source *src) {
    bool bf16 = false;
    nmlp_emit_source_line(src, "import argparse");
    if (!src->legacy) nmlp_emit_source_line(src, "import os");
    if (!src->legacy) nmlp_emit_source_line(src, "import time");
    for (size_t i = 0; i < src->p->n_tensors; i++)
        bf16 = bf16 || src->p->tensors[i].dtype == NMLP_NC_BF16 || src->p->tensors[i].dtype == NMLP_NC_FP8;
    nmlp_str_puts(src->out, bf16 ? "\nimport ml_dtypes\nimport numpy as np\n\n" : "\nimport numpy as np\n\n");
}

void nmlp_emit_frame_head(nmlp_emit_source *src) {
    nmlp_str formula;
    nmlp_str_init(&formula);
    nmlp_emit_frame_formula(src, &formula);
    int64_t cores = nmlp_program_cores(src->p);
    nmlp_emit_source_line(src, "\"\"\"%s on %s %s NeuronCore%s: %s.", src->p->name, cores > 1 ? "two" : "one",
                          src->machine_name, cores > 1 ? "s" : "", nmlp_str_text(&formula));
    nmlp_emit_source_part_end(src, &formula);
    nmlp_str_puts(src->out, "\n");
    const char *from, *to;
    nmlp_dialect_sdk(src->options->dialect, &from, &to);
    nmlp_emit_source_line(src, "%s, Neuron SDK %s to %s.",
                          src->legacy ? "Legacy NKI (neuronxcc.nki)" : "NKI 0.3 or later (import nki)", from, to);
    if (src->command) {
        nmlp_str_puts(src->out, "Printed by neuronmlp; to print it again:\n    ");
        nmlp_str_puts(src->out, src->command);
        nmlp_str_putc(src->out, '\n');
    } else {
        nmlp_emit_source_line(src, "Printed by neuronmlp.");
    }
    nmlp_emit_source_line(src, "Checked against a simulation of the tile program; not yet run on hardware.");
    nmlp_emit_source_line(src, "\"\"\"");
    if (cores == 1) put_main_imports(src);
    if (src->legacy) {
        nmlp_emit_source_line(src, "from neuronxcc import nki");
        nmlp_emit_source_line(src, "import neuronxcc.nki.isa as nisa");
        nmlp_emit_source_line(src, "import neuronxcc.nki.language as nl");
    } else {
        nmlp_emit_source_line(src, "import nki");
        nmlp_emit_source_line(src, "import nki.isa as nisa");
        nmlp_emit_source_line(src, "import nki.language as nl");
    }
}

static void put_constant(nmlp_emit_source *src, const char *body, const char *name, int64_t value,
                         const char *meaning) {
    if (!mentions(body, name)) return;
    char text[160];
    int n = snprintf(text, sizeof text, "%s = %" PRId64, name, value);
    nmlp_emit_source_line(src, "%s%*s# %s", text, n < 24 ? 24 - n : 2, "", meaning);
}

static const char *letter_meaning(const char *name, bool gated) {
    if (gated && strcmp(name, "O") == 0) return "intermediate size";
    static const struct {
        const char *name, *meaning;
    } table[] = {{"S", "rows (tokens)"}, {"H", "hidden size"},   {"R", "rank"},    {"RG", "rank of gate"},
                 {"RU", "rank of up"},   {"RD", "rank of down"}, {"O", "outputs"}, {"I", "intermediate size"}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].name, name) == 0) return table[i].meaning;
    return "extent";
}

/* Every constant the file mentions. `text` is what follows. */
void nmlp_emit_frame_constants(nmlp_emit_source *src, const char *text) {
    const nmlp_emit_shape *s = &src->shape;
    char name[NMLP_EMIT_SOURCE_NAME_MAX], meaning[NMLP_EMIT_SOURCE_NAME_MAX + 48];
    nmlp_str_puts(src->out, "\n");
    put_constant(src, text, "P", (int64_t)src->options->machine->partitions, "partitions of SBUF and PSUM");
    bool gated = nmlp_emit_math_of(src->p).op >= NMLP_EMIT_OP_GATED;
    for (int i = 0; i < s->n_axes; i++)
        if (!s->axes[i].run)
            put_constant(src, text, s->axes[i].name, s->axes[i].extent, letter_meaning(s->axes[i].name, gated));
    for (int i = 0; i < s->n_axes; i++) {
        for (int l = 0; l < s->axes[i].n_steps; l++) {
            static const char *const of[2][NMLP_AXIS_STEPS_MAX] = {
                {"one tile along", "one block of tiles along", "one strip of blocks along"},
                {"columns of one tile of", "columns of one run of tiles of", "columns of one load of"}};
            snprintf(name, sizeof name, "%s_%s", nmlp_emit_level_name(&s->axes[i], l), s->axes[i].name);
            bool load = s->axes[i].run && l == s->axes[i].n_steps - 1 && s->axes[i].steps[l] != s->axes[i].tile;
            snprintf(meaning, sizeof meaning, "%s %s", of[s->axes[i].run][load ? 2 : l], s->axes[i].name);
            put_constant(src, text, name, s->axes[i].steps[l], meaning);
        }
    }
}

static const char *meaning_of(const nmlp_emit_source *src, int tensor) {
    const nmlp_tensor *t = &src->p->tensors[tensor];
    nmlp_emit_weight w;
    if (strcmp(t->name, "x") == 0) return "activations, one token a row";
    if (strcmp(t->name, "xT") == 0) return "activations transposed, one token a column";
    if (strcmp(t->name, "y") == 0)
        return nmlp_program_cores(src->p) > 1 ? "parts of the result, a core's below the other's; add them"
                                              : "result, one token a row";
    if (strcmp(t->name, "yT") == 0) return "result transposed, one token a column";
    if (t->role != NMLP_ROLE_WEIGHT) return nmlp_role_name(t->role);
    if (!nmlp_emit_weight_of(src->p, tensor, &w)) return "weights";
    if (w.scales) return "scales of the outputs";
    if (w.gain) return "weights of the norm";
    if (!w.packed) return "weights, [inputs, outputs]";
    if (nmlp_program_cores(src->p) > 1)
        return w.cores > 1 ? "weights in tiles, a core's beside the other's" : "weights in tiles, for both cores";
    return w.n_planes == 2 ? "two weights in tiles, see pack()" : "weights in tiles, see pack()";
}

static void put_tensor(nmlp_emit_source *src, int tensor) {
    const nmlp_tensor *t = &src->p->tensors[tensor];
    const int *axis = &src->shape.tensor_axis[2 * tensor];
    char head[128];
    nmlp_str shape;
    nmlp_str_init(&shape);
    nmlp_str_putc(&shape, '[');
    nmlp_emit_put_length(&src->shape, axis[0], t->rows, &shape);
    nmlp_str_puts(&shape, ", ");
    nmlp_emit_put_length(&src->shape, axis[1], t->cols, &shape);
    nmlp_str_putc(&shape, ']');
    snprintf(head, sizeof head, "%-10s %-14s %s", src->tensor_names[tensor], nmlp_str_text(&shape),
             nmlp_emit_python_dtype(t->dtype));
    nmlp_emit_source_line(src, "    %s, %s", head, meaning_of(src, tensor));
    nmlp_emit_source_part_end(src, &shape);
}

static void put_role(nmlp_emit_source *src, const char *title, bool output) {
    nmlp_emit_source_line(src, "%s", title);
    for (size_t i = 0; i < src->p->n_tensors; i++) {
        nmlp_role role = src->p->tensors[i].role;
        if (role == NMLP_ROLE_SCRATCH || (role == NMLP_ROLE_OUTPUT) != output) continue;
        put_tensor(src, (int)i);
    }
}

static void put_count_with_commas(char text[32], int64_t n) {
    char digits[32];
    int len = snprintf(digits, sizeof digits, "%" PRId64, n), at = 0;
    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0) text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = '\0';
}

static void put_docstring(nmlp_emit_source *src) {
    const nmlp_machine *m = src->options->machine;
    nmlp_str formula;
    char count[32];
    nmlp_str_init(&formula);
    nmlp_emit_frame_formula(src, &formula);
    nmlp_emit_source_line(src, "\"\"\"%s", nmlp_str_text(&formula));
    nmlp_emit_source_part_end(src, &formula);
    nmlp_str_puts(src->out, "\n");
    put_role(src, "Arguments, in HBM:", false);
    put_role(src, "Returns:", true);
    nmlp_str_puts(src->out, "\n");
    nmlp_emit_source_line(src, "SBUF: %.1f of %.1f KiB per partition, with every buffer in as many copies as planned.",
                          (double)nmlp_program_sbuf_bytes(src->p) / 1024, m->sbuf_usable_bytes / 1024);
    if (nmlp_program_sbuf_bytes(src->p) > (int64_t)m->sbuf_usable_bytes)
        nmlp_emit_source_line(
            src, "That is more than there is: the compiler keeps fewer copies, or moves data to HBM and back.");
    nmlp_emit_source_line(src, "PSUM: %" PRId64 " of %d banks.", nmlp_program_psum_banks(src->p, m),
                          (int)m->psum_banks);
    put_count_with_commas(count, src->instructions);
    if (src->options->latency_us >= 0)
        nmlp_emit_source_line(src, "Simulated latency: %.1f us on %s; a model, not a measurement.",
                              src->options->latency_us, src->machine_name);
    nmlp_emit_source_line(src, "Instructions: %s with all loops unrolled.", count);
    if (!src->legacy && src->instructions > NMLP_EMIT_UNROLL_ADVICE) {
        nmlp_emit_source_line(
            src, "Note: the compiler unrolls every loop, and above about 100,000 instructions it becomes slow and");
        nmlp_emit_source_line(src,
                              "large. Print the kernel for fewer rows and call it once per slice of the rows instead.");
    }
    nmlp_emit_source_line(src, "\"\"\"");
}

void nmlp_emit_frame_signature(nmlp_emit_source *src) {
    nmlp_str args;
    nmlp_str_init(&args);
    for (size_t i = 0; i < src->p->n_tensors; i++) {
        nmlp_role role = src->p->tensors[i].role;
        if (role != NMLP_ROLE_INPUT && role != NMLP_ROLE_WEIGHT) continue;
        nmlp_str_printf(&args, "%s%s", args.len ? ", " : "", src->tensor_names[i]);
    }
    nmlp_str_puts(src->out, "\n\n");
    nmlp_emit_source_line(src, "@nki.jit");
    nmlp_emit_source_line(src, "def %s(%s):", src->p->name, nmlp_str_text(&args));
    nmlp_emit_source_part_end(src, &args);
    src->depth++;
    put_docstring(src);
    for (size_t i = 0; i < src->p->n_tensors; i++) {
        const nmlp_tensor *t = &src->p->tensors[i];
        if (t->role != NMLP_ROLE_OUTPUT && t->role != NMLP_ROLE_SCRATCH) continue;
        const int *axis = &src->shape.tensor_axis[2 * i];
        nmlp_str text;
        nmlp_str_init(&text);
        nmlp_str_printf(&text, "%s = nl.ndarray\2(", src->tensor_names[i]);
        nmlp_emit_put_length(&src->shape, axis[0], t->rows, &text);
        nmlp_str_puts(&text, ", ");
        nmlp_emit_put_length(&src->shape, axis[1], t->cols, &text);
        nmlp_str_puts(&text, ")\1dtype=");
        nmlp_emit_put_dtype(t->dtype, &text);
        nmlp_str_printf(&text, "\1buffer=nl.%s\3", t->role == NMLP_ROLE_OUTPUT ? "shared_hbm" : "private_hbm");
        nmlp_emit_source_statement(src, &text);
        nmlp_emit_source_part_end(src, &text);
    }
}

void nmlp_emit_frame_return(nmlp_emit_source *src) {
    nmlp_str names;
    nmlp_str_init(&names);
    for (size_t i = 0; i < src->p->n_tensors; i++)
        if (src->p->tensors[i].role == NMLP_ROLE_OUTPUT)
            nmlp_str_printf(&names, "%s%s", names.len ? ", " : "", src->tensor_names[i]);
    nmlp_emit_source_line(src, "return %s", nmlp_str_text(&names));
    nmlp_emit_source_part_end(src, &names);
    src->depth--;
}
