/* A PyTorch module around a kernel: reads the factors of a compressed checkpoint, lays them out as the kernel wants
 * them, calls it. The checkpoint stores a projection as u[outputs, r] and v[r, inputs] with W = u v, or dense as
 * weight[outputs, inputs]; kernels multiply from the right, so every matrix is transposed once, at load. */
#include <inttypes.h>
#include <string.h>

#include "trainium/emit/frame.h"

/* Where each matrix of a kernel comes from; %s is the projection where the kernel serves any one. */
static const struct {
    const char *matrix, *tensor;
} sources[] = {
    {"w", "weight"},
    {"u", "v"},
    {"v", "u"},
    {"w_gate", "gate_proj.weight"},
    {"w_up", "up_proj.weight"},
    {"w_down", "down_proj.weight"},
    {"u_gate", "gate_proj.v"},
    {"v_gate", "gate_proj.u"},
    {"u_up", "up_proj.v"},
    {"v_up", "up_proj.u"},
    {"u_shared", "gate_up_proj.v"},
    {"u_down", "down_proj.v"},
    {"v_down", "down_proj.u"},
};

enum { N_SOURCES = sizeof sources / sizeof sources[0] };

static void put_sources(nmlp_emit_source *src) {
    nmlp_emit_source_line(
        src,
        "# The kernel's matrices and the checkpoint's tensors below the layer's prefix; all of them are transposed.");
    nmlp_emit_source_line(src, "SOURCES = {");
    for (size_t t = 0; t < src->p->n_tensors; t++) {
        nmlp_emit_weight w;
        if (src->p->tensors[t].role != NMLP_ROLE_WEIGHT || !nmlp_emit_weight_of(src->p, (int)t, &w)) continue;
        for (int plane = 0; plane < w.n_planes; plane++)
            for (int i = 0; i < N_SOURCES; i++)
                if (strcmp(sources[i].matrix, w.matrix[plane]) == 0)
                    nmlp_emit_source_line(src, "    \"%s\": (\"%s\", (%" PRId64 ", %" PRId64 ")),", w.matrix[plane],
                                          sources[i].tensor, w.n, w.k[plane]);
    }
    nmlp_emit_source_line(src, "}");
}

static void put_head(nmlp_emit_source *src, const char *kernel_module) {
    nmlp_str formula;
    nmlp_str_init(&formula);
    nmlp_emit_frame_formula(src, &formula);
    nmlp_emit_source_line(src, "\"\"\"A PyTorch module that runs %s on a NeuronCore: %s.", src->p->name,
                          nmlp_str_text(&formula));
    nmlp_emit_source_part_end(src, &formula);
    nmlp_str_puts(src->out, "\nReads the factors of a checkpoint written by `neuronmlp compress`.\n");
    if (src->command) nmlp_str_printf(src->out, "Printed by neuronmlp; to print it again:\n    %s\n", src->command);
    nmlp_str_puts(src->out, "Not yet run on hardware.\n\"\"\"\n");
    nmlp_str_puts(src->out, "import json\nimport os\n\nimport torch\nfrom safetensors import safe_open\n\n");
    nmlp_emit_source_line(src, "from %s import %s", kernel_module, src->p->name);
    nmlp_str_putc(src->out, '\n');
}

static void put_loader(nmlp_emit_source *src) {
    static const char *const lines[] = {
        "",
        "",
        "def open_tensors(folder, names):",
        "    \"\"\"The named tensors of a safetensors checkpoint, sharded or not.\"\"\"",
        "    index = os.path.join(folder, \"model.safetensors.index.json\")",
        "    files = {name: \"model.safetensors\" for name in names}",
        "    if os.path.exists(index):",
        "        with open(index) as file:",
        "            shards = json.load(file)[\"weight_map\"]",
        "        missing = [name for name in names if name not in shards]",
        "        if missing:",
        "            raise KeyError(f\"{folder} has no tensor {missing[0]}\")",
        "        files = {name: shards[name] for name in names}",
        "    tensors = {}",
        "    for name, file in files.items():",
        "        with safe_open(os.path.join(folder, file), framework=\"pt\") as shard:",
        "            tensors[name] = shard.get_tensor(name)",
        "    return tensors",
        NULL};
    for (int i = 0; lines[i]; i++) nmlp_emit_source_line(src, "%s", lines[i]);
}

static void put_constructor(nmlp_emit_source *src, const char *torch_dtype) {
    static const char *const lines[] = {
        "    def __init__(self, folder, prefix, device):",
        "        super().__init__()",
        "        names = {matrix: f\"{prefix}.{name}\" for matrix, (name, _) in SOURCES.items()}",
        "        tensors = open_tensors(folder, names.values())",
        "        m = {}",
        "        for matrix, (_, shape) in SOURCES.items():",
        "            tensor = tensors[names[matrix]]",
        "            if tuple(tensor.shape) != shape:",
        "                raise ValueError(f\"{names[matrix]} is {tuple(tensor.shape)}, the kernel was printed for "
        "{shape}\")",
        NULL};
    for (int i = 0; lines[i]; i++) nmlp_emit_source_line(src, "%s", lines[i]);
    nmlp_emit_source_line(src, "            m[matrix] = tensor.to(torch.%s).t().contiguous()", torch_dtype);
    nmlp_emit_source_line(src, "        self.weights = [");
    for (size_t t = 0; t < src->p->n_tensors; t++) {
        if (src->p->tensors[t].role != NMLP_ROLE_WEIGHT) continue;
        nmlp_str text;
        nmlp_str_init(&text);
        nmlp_emit_frame_argument(src, (int)t, "m[\"", "\"]", &text);
        nmlp_emit_source_line(src, "            %s.to(device),", nmlp_str_text(&text));
        nmlp_emit_source_part_end(src, &text);
    }
    nmlp_emit_source_line(src, "        ]");
}

/* The kernel has a fixed number of rows: longer inputs go in slices, the last one filled with zeros. */
static void put_forward(nmlp_emit_source *src, const nmlp_emit_math *math) {
    static const char *const head[] = {
        "",
        "    def forward(self, x):",
        "        \"\"\"x [..., inputs] -> y [..., outputs]; rows are padded to a multiple of the kernel's.\"\"\"",
        "        rows = x.reshape(-1, x.shape[-1])",
        "        count = rows.shape[0]",
        "        padded = torch.nn.functional.pad(rows, (0, 0, 0, -count % S))",
        "        parts = []",
        "        for first in range(0, padded.shape[0], S):",
        NULL};
    for (int i = 0; head[i]; i++) nmlp_emit_source_line(src, "%s", head[i]);
    nmlp_emit_source_line(src, "            part = padded[first:first + S]%s",
                          math->x_transposed ? ".t().contiguous()" : "");
    nmlp_emit_source_line(src, "            parts.append(%s(part, *self.weights)%s)", src->p->name,
                          math->y_transposed ? ".t()" : "");
    nmlp_emit_source_line(src, "        y = torch.cat(parts)[:count]");
    nmlp_emit_source_line(src, "        return y.reshape(*x.shape[:-1], y.shape[-1])");
}

static nmlp_status check_module(const nmlp_program *p, const nmlp_emit_options *options, nmlp_emit_math *math,
                                nmlp_err *err) {
    int64_t s;
    if (options->dialect != NMLP_DIALECT_NKI)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "the PyTorch module exists in the current dialect only; expected dialect nki, found %s",
                         nmlp_dialect_name(options->dialect));
    *math = nmlp_emit_math_of(p);
    if (math->op == NMLP_EMIT_OP_UNKNOWN || !nmlp_program_param(p, "S", &s))
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "program %s: its tensors do not name a layer of a model, so no module can be printed",
                         p->name);
    if (math->fp8)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "program %s: the module reads plain weights, not fp8 ones; a package has those", p->name);
    if (math->epsilon > 0 || math->residual)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "program %s: the module holds an MLP alone; a package has its norm and residual", p->name);
    return NMLP_OK;
}

nmlp_status nmlp_emit_module(nmlp_str *out, const nmlp_program *program, const nmlp_emit_options *options,
                             const char *kernel_module, nmlp_err *err) {
    nmlp_emit_source src;
    nmlp_emit_math math = {0};
    int64_t s = 0;
    NMLP_RETURN_IF_FAILED(check_module(program, options, &math, err));
    NMLP_RETURN_IF_FAILED(nmlp_emit_source_init(&src, program, options, out, err));
    nmlp_program_param(program, "S", &s);
    put_head(&src, kernel_module);
    if (nmlp_emit_frame_packs(&src))
        nmlp_emit_source_line(&src, "P = %-20d# partitions of SBUF and PSUM", (int)options->machine->partitions);
    nmlp_emit_source_line(&src, "S = %-20" PRId64 "# rows of one call", s);
    nmlp_str_putc(out, '\n');
    put_sources(&src);
    put_loader(&src);
    if (nmlp_emit_frame_packs(&src)) nmlp_emit_frame_pack(&src, true);
    nmlp_str_puts(out, "\n\n");
    bool mlp = math.op >= NMLP_EMIT_OP_GATED;
    nmlp_emit_source_line(&src, "class %s(torch.nn.Module):",
                          mlp                           ? "NeuronMlp"
                          : math.op == NMLP_EMIT_OP_XUV ? "NeuronLowRankLinear"
                                                        : "NeuronLinear");
    nmlp_emit_source_line(&src, "    \"\"\"%s of a checkpoint; `prefix` is e.g. model.layers.0.mlp%s.\"\"\"",
                          mlp ? "The MLP" : "One projection", mlp ? "" : ".down_proj");
    nmlp_str_putc(out, '\n');
    put_constructor(&src, nmlp_emit_python_dtype(program->tensors[0].dtype));
    put_forward(&src, &math);
    nmlp_emit_source_fini(&src);
    return nmlp_str_status(out, err);
}
