/* Beside the kernel: packing of weights, random inputs, the float64 reference, a main that checks and times. */
#include <inttypes.h>
#include <string.h>

#include "trainium/emit/frame.h"
#include "trainium/neuron/pack.h"
#include "trainium/neuron/program_cores.h"

bool nmlp_emit_frame_packs(const nmlp_emit_source *src) {
    nmlp_emit_weight w;
    bool some = false;
    for (size_t i = 0; i < src->p->n_tensors; i++)
        if (nmlp_emit_weight_of(src->p, (int)i, &w)) some = some || w.packed;
    return some;
}

static void def(nmlp_emit_source *src, const char *signature, const char *doc) {
    nmlp_str_puts(src->out, "\n\n");
    nmlp_emit_source_line(src, "def %s:", signature);
    src->depth++;
    nmlp_emit_source_line(src, "\"\"\"%s\"\"\"", doc);
}

/* Each line at its own depth; KERNEL stands for the kernel's name. */
static void put_lines(nmlp_emit_source *src, const char *const *lines) {
    for (; *lines; lines++) {
        const char *at = strstr(*lines, "KERNEL");
        if (!at)
            nmlp_emit_source_line(src, "%s", *lines);
        else
            nmlp_emit_source_line(src, "%.*s%s%s", (int)(at - *lines), *lines, src->p->name, at + 6);
    }
}

void nmlp_emit_frame_pack(nmlp_emit_source *src, bool torch) {
    const char *array = torch ? "torch" : "np", *permute = torch ? "permute" : "transpose";
    def(src, "pack(planes, chunk_tiles, columns, rows=())",
        "Cuts matrices [K, N] with as many columns into tiles, in the order the kernel uses them.\n"
        "\n    A tile has P rows, or those given for its plane. Row p of the result holds row p of every tile: by\n"
        "    chunk of K, column tile, plane, tile of the chunk.\n    ");
    static const char *const lines[] = {"parts = []",
                                        "for i, plane in enumerate(planes):",
                                        "    k, n = plane.shape",
                                        "    size = rows[i] if rows else P",
                                        "    tiles = min(chunk_tiles, -(-k // size))",
                                        "    chunks, n_tiles = -(-k // (tiles * size)), -(-n // columns)",
                                        NULL};
    put_lines(src, lines);
    nmlp_emit_source_line(src, "    padded = %s.zeros((chunks * tiles * size, n_tiles * columns), dtype=plane.dtype)",
                          array);
    nmlp_emit_source_line(src, "    padded[:k, :n] = plane");
    nmlp_emit_source_line(src, "    part = %s.zeros((P, chunks, n_tiles, tiles, columns), dtype=plane.dtype)", array);
    nmlp_emit_source_line(
        src, "    part[:size] = padded.reshape(chunks, tiles, size, n_tiles, columns).%s(2, 0, 3, 1, 4)", permute);
    nmlp_emit_source_line(src, "    parts.append(part)");
    nmlp_emit_source_line(src,
                          "used = max(min(plane.shape[0], rows[i] if rows else P) for i, plane in enumerate(planes))");
    nmlp_emit_source_line(src, torch ? "return torch.cat(parts, dim=3).reshape(P, -1)[:used].contiguous()"
                                     : "return np.concatenate(parts, axis=3).reshape(P, -1)[:used]");
    src->depth--;
}

static void put_pack_scales(nmlp_emit_source *src) {
    def(src, "pack_scales(planes, columns)",
        "Scales [1, N] of the outputs of packed matrices: row p holds the p-th of every tile, plane by plane.");
    static const char *const lines[] = {"n = planes[0].shape[1]",
                                        "tiles = -(-n // columns)",
                                        "padded = np.zeros((len(planes), tiles * columns), dtype=np.float32)",
                                        "padded[:, :n] = np.concatenate(planes)",
                                        "part = padded.reshape(len(planes), tiles, columns).transpose(2, 1, 0)",
                                        "return np.ascontiguousarray(part.reshape(columns, -1)[:min(columns, n)])",
                                        NULL};
    put_lines(src, lines);
    src->depth--;
}

/* "pack_scales([a, b], 128)", or the scales themselves where they stay in a row. */
static void put_scales(const nmlp_emit_weight *w, const char *prefix, const char *suffix, nmlp_str *out) {
    if (w->gain) {
        nmlp_str_printf(out, "pack_scales([%s%s%s], %" PRId64 ")", prefix, w->matrix[0], suffix, w->columns);
        return;
    }
    if (w->tiles > 0) nmlp_str_puts(out, "pack_scales([");
    for (int i = 0; i < w->n_planes; i++)
        nmlp_str_printf(out, "%s%s%s_scale%s", i ? ", " : "", prefix, w->matrix[i], suffix);
    if (w->tiles > 0) nmlp_str_printf(out, "], %" PRId64 ")", w->columns);
}

void nmlp_emit_frame_argument(const nmlp_emit_source *src, int tensor, const char *prefix, const char *suffix,
                              nmlp_str *out) {
    nmlp_emit_weight w;
    if (!nmlp_emit_weight_of(src->p, tensor, &w)) return;
    if (w.scales || w.gain) {
        put_scales(&w, prefix, suffix, out);
        return;
    }
    if (!w.packed) {
        nmlp_str_printf(out, "%s%s%s", prefix, w.matrix[0], suffix);
        return;
    }
    nmlp_str_puts(out, "pack([");
    for (int i = 0; i < w.n_planes; i++) nmlp_str_printf(out, "%s%s%s%s", i ? ", " : "", prefix, w.matrix[i], suffix);
    nmlp_str_printf(out, "], %" PRId64 ", ", w.chunk_tiles);
    int64_t p = (int64_t)src->options->machine->partitions;
    nmlp_str_printf(out, w.columns == p ? "P" : "%" PRId64, w.columns);
    if (w.rows[0] != p || (w.n_planes > 1 && w.rows[1] != p)) {
        nmlp_str_printf(out, ", (%" PRId64 ",", w.rows[0]);
        if (w.n_planes > 1) nmlp_str_printf(out, " %" PRId64, w.rows[1]);
        nmlp_str_putc(out, ')');
    }
    nmlp_str_putc(out, ')');
}

static void put_extent(const nmlp_emit_source *src, const char *letter, int axis, int64_t value, nmlp_str *out) {
    if (letter)
        nmlp_str_puts(out, letter);
    else
        nmlp_emit_put_length(&src->shape, axis, value, out);
}

static void put_inputs(nmlp_emit_source *src, const nmlp_emit_math *math) {
    def(src, "inputs(seed=0)", "Random activations and weights; the scale keeps results near 1.");
    nmlp_emit_source_line(src, "rng = np.random.default_rng(seed)");
    nmlp_emit_source_line(src, "return {");
    for (size_t t = 0; t < src->p->n_tensors; t++) {
        nmlp_emit_weight w;
        if (!nmlp_emit_weight_of(src->p, (int)t, &w)) continue;
        for (int i = 0; i < w.n_planes; i++) {
            nmlp_str k, n;
            nmlp_str_init(&k);
            nmlp_str_init(&n);
            put_extent(src, w.k_name[i], src->shape.tensor_axis[2 * t], w.k[i], &k);
            put_extent(src, w.n_name, src->shape.tensor_axis[2 * t + 1], w.n, &n);
            bool weight = src->p->tensors[t].role == NMLP_ROLE_WEIGHT;
            nmlp_str factor;
            nmlp_str_init(&factor);
            if (w.gain) {
                nmlp_emit_source_line(src, "    \"%s\": rng.uniform(0.5, 1.5, (1, %s)).astype(np.float32),",
                                      w.matrix[i], nmlp_str_text(&n));
                nmlp_emit_source_part_end(src, &factor);
                nmlp_emit_source_part_end(src, &k);
                nmlp_emit_source_part_end(src, &n);
                continue;
            }
            if (w.scales) { /* which make up for the size of the codes, each differently */
                nmlp_emit_source_line(src,
                                      "    \"%s_scale\": rng.uniform(0.5, 1.5, (1, %s)).astype(np.float32)"
                                      " / np.float32(64 * np.sqrt(%s)),",
                                      w.matrix[i], nmlp_str_text(&n), nmlp_str_text(&k));
                nmlp_emit_source_part_end(src, &factor);
                nmlp_emit_source_part_end(src, &k);
                nmlp_emit_source_part_end(src, &n);
                continue;
            }
            if (weight && math->fp8)
                nmlp_str_puts(&factor, " * np.float32(64)");
            else if (weight)
                nmlp_str_printf(&factor, " / np.float32(np.sqrt(%s))", nmlp_str_text(&k));
            else if (math->epsilon > 0) /* rows of different size: else a norm would change next to nothing */
                nmlp_str_printf(&factor, " * np.resize(np.float32([3, 1, 0.25, 0.001]), %s)%s",
                                nmlp_str_text(math->x_transposed ? &n : &k), math->x_transposed ? "" : "[:, None]");
            bool codes = weight && math->fp8; /* none above 240, where there are no codes */
            nmlp_emit_source_line(src, "    \"%s\": %srng.standard_normal((%s, %s), dtype=np.float32)%s%s,",
                                  w.matrix[i], codes ? "np.clip(" : "", nmlp_str_text(&k), nmlp_str_text(&n),
                                  nmlp_str_text(&factor), codes ? ", -240, 240)" : "");
            nmlp_emit_source_part_end(src, &factor);
            nmlp_emit_source_part_end(src, &k);
            nmlp_emit_source_part_end(src, &n);
        }
    }
    nmlp_emit_source_line(src, "}");
    src->depth--;
}

static void put_arguments(nmlp_emit_source *src) {
    def(src, "arguments(m)", "The kernel's arguments from the matrices of inputs().");
    nmlp_emit_source_line(src, "return [");
    for (size_t t = 0; t < src->p->n_tensors; t++) {
        nmlp_role role = src->p->tensors[t].role;
        if (role != NMLP_ROLE_INPUT && role != NMLP_ROLE_WEIGHT) continue;
        nmlp_str text;
        nmlp_str_init(&text);
        nmlp_emit_frame_argument(src, (int)t, "m[\"", "\"]", &text);
        nmlp_emit_source_line(src, "    %s,", nmlp_str_text(&text));
        nmlp_emit_source_part_end(src, &text);
    }
    nmlp_emit_source_line(src, "]");
    src->depth--;
}

static void put_gated(nmlp_emit_source *src, const nmlp_emit_math *math) {
    const char *gate = math->gate_low ? "x @ m[\"u_gate\"] @ m[\"v_gate\"]" : "x @ m[\"w_gate\"]",
               *up = math->up_low ? "x @ m[\"u_up\"] @ m[\"v_up\"]" : "x @ m[\"w_up\"]";
    if (math->shared) {
        nmlp_emit_source_line(src, "basis = x @ m[\"u_shared\"]");
        gate = "basis @ m[\"v_gate\"]", up = "basis @ m[\"v_up\"]";
    }
    nmlp_emit_source_line(src, "gate, up = %s, %s", gate, up);
    if (math->op == NMLP_EMIT_OP_GATED) {
        nmlp_emit_source_line(src, "y = gate / (1.0 + np.exp(-gate)) * up");
        return;
    }
    nmlp_emit_source_line(src, "act = gate / (1.0 + np.exp(-gate)) * up");
    nmlp_emit_source_line(src, math->down_low ? "y = act @ m[\"u_down\"] @ m[\"v_down\"]" : "y = act @ m[\"w_down\"]");
}

static void put_reference(nmlp_emit_source *src, const nmlp_emit_math *math) {
    def(src, "reference(m)", "The same in float64.");
    nmlp_emit_source_line(src, "m = {name: a.astype(np.float64) for name, a in m.items()}");
    if (math->fp8) nmlp_emit_source_line(src, "m = {name: a * m.get(name + \"_scale\", 1.0) for name, a in m.items()}");
    nmlp_emit_source_line(src, math->x_transposed ? "x = m[\"xT\"].T" : "x = m[\"x\"]");
    if (math->residual) nmlp_emit_source_line(src, "given = x");
    if (math->epsilon > 0)
        nmlp_emit_source_line(src, "x = x / np.sqrt((x * x).mean(1, keepdims=True) + %.12g)%s", math->epsilon,
                              math->fp8 ? " * m[\"" NMLP_GAIN_TENSOR "\"]" : "");
    if (math->op == NMLP_EMIT_OP_XW)
        nmlp_emit_source_line(src, "y = x @ m[\"w\"]");
    else if (math->op == NMLP_EMIT_OP_XUV)
        nmlp_emit_source_line(src, "y = x @ m[\"u\"] @ m[\"v\"]");
    else
        put_gated(src, math);
    if (math->residual) nmlp_emit_source_line(src, "y = given + y");
    nmlp_emit_source_line(src, math->y_transposed ? "return y.T" : "return y");
    src->depth--;
}

/* Codes above 240 are never made, so that the e4m3 of PyTorch and that of the device mean the same. */
static void put_kind(nmlp_emit_source *src) {
    def(src, "kind(name, dtype)", "The type of an argument: fp8 for weights, float32 for scales and a norm's weights.");
    static const char *const lines[] = {
        "if name.endswith(\"_scale\") or name == \"" NMLP_GAIN_TENSOR "\":", "    return np.float32",
        "return dtype if name in (\"x\", \"xT\") else ml_dtypes.float8_e4m3", NULL};
    put_lines(src, lines);
    src->depth--;
}

static void put_device_run(nmlp_emit_source *src, nmlp_nc_dtype dtype, bool fp8) {
    if (src->legacy) {
        static const char *const lines[] = {
            "y = nki.baremetal(KERNEL)(*args)", "timed = nki.benchmark(warmup=5, iters=iters)(KERNEL)", "timed(*args)",
            "return y, timed.benchmark_result.nc_latency.get_latency_percentile(50)", NULL};
        def(src, "on_device(args, iters)", "Runs on a NeuronCore; returns the result and the median latency in us.");
        put_lines(src, lines);
        src->depth--;
        return;
    }
    def(src, "on_device(args, iters)",
        "Runs through PyTorch/XLA; returns the result and the median time of a call in us.");
    nmlp_emit_source_line(src, "import torch");
    nmlp_emit_source_line(src, "import torch_xla");
    nmlp_emit_source_line(src, "import torch_xla.core.xla_model as xm");
    nmlp_str_putc(src->out, '\n');
    nmlp_emit_source_line(src, "device = torch_xla.device()");
    if (fp8) {
        nmlp_emit_source_line(src, "types = {4: torch.float32, 2: torch.%s, 1: torch.float8_e4m3fn}",
                              nmlp_emit_python_dtype(dtype));
        nmlp_emit_source_line(src, "tensors = [torch.from_numpy(a.astype(np.float32)).to(types[a.dtype.itemsize])"
                                   ".to(device) for a in args]");
    } else {
        nmlp_emit_source_line(
            src, "tensors = [torch.from_numpy(a.astype(np.float32)).to(torch.%s).to(device) for a in args]",
            nmlp_emit_python_dtype(dtype));
    }
    static const char *const lines[] = {"times = []",
                                        "for _ in range(5 + iters):",
                                        "    xm.wait_device_ops()",
                                        "    begin = time.perf_counter()",
                                        "    y = KERNEL(*tensors)",
                                        "    torch_xla.sync()",
                                        "    xm.wait_device_ops()",
                                        "    times.append(time.perf_counter() - begin)",
                                        "return y.cpu().to(torch.float32).numpy(), 1e6 * float(np.median(times[5:]))",
                                        NULL};
    put_lines(src, lines);
    src->depth--;
}

/* The kernel runs on one physical core; trn2's runtime joins two by default and fails only when it is launched. The
 * simulator off a device must be told the machine. */
static void put_environment(nmlp_emit_source *src) {
    static const char *const lines[] = {"    if os.environ.setdefault(\"NEURON_LOGICAL_NC_CONFIG\", \"1\") != \"1\":",
                                        "        parser.error(\"this kernel is for one physical core per logical one: "
                                        "set NEURON_LOGICAL_NC_CONFIG=1\")",
                                        NULL};
    put_lines(src, lines);
    nmlp_emit_source_line(src, "    os.environ.setdefault(\"NEURON_PLATFORM_TARGET_OVERRIDE\", \"trn%d\")",
                          (int)src->options->machine->generation - 1);
}

/* Inputs as their types hold them, and the arguments made of them. */
static void put_rounding(nmlp_emit_source *src, bool fp8) {
    if (!fp8) {
        nmlp_emit_source_line(src,
                              "    m = {name: a.astype(dtype).astype(np.float32) for name, a in inputs().items()}");
        nmlp_emit_source_line(src, "    args = [a.astype(dtype) for a in arguments(m)]");
        return;
    }
    nmlp_emit_source_line(
        src, "    m = {name: a.astype(kind(name, dtype)).astype(np.float32) for name, a in inputs().items()}");
    nmlp_str names;
    nmlp_str_init(&names);
    for (size_t t = 0; t < src->p->n_tensors; t++) {
        nmlp_role role = src->p->tensors[t].role;
        if (role == NMLP_ROLE_INPUT || role == NMLP_ROLE_WEIGHT)
            nmlp_str_printf(&names, "%s\"%s\"", names.len ? ", " : "", src->p->tensors[t].name);
    }
    nmlp_emit_source_line(src, "    names = [%s]", nmlp_str_text(&names));
    nmlp_emit_source_part_end(src, &names);
    nmlp_emit_source_line(src, "    args = [a.astype(kind(name, dtype)) for name, a in zip(names, arguments(m))]");
}

void nmlp_emit_frame_main(nmlp_emit_source *src) {
    nmlp_emit_math math = nmlp_emit_math_of(src->p);
    if (math.op == NMLP_EMIT_OP_UNKNOWN) return; /* nothing to compare with */
    if (nmlp_program_cores(src->p) > 1) return;  /* a package's, which brings its own check */
    nmlp_nc_dtype dtype = NMLP_NC_FP32;
    for (size_t i = 0; i < src->p->n_tensors; i++)
        if (src->p->tensors[i].role == NMLP_ROLE_INPUT) dtype = src->p->tensors[i].dtype;
    if (nmlp_emit_frame_packs(src)) nmlp_emit_frame_pack(src, false);
    if (math.fp8) put_pack_scales(src);
    if (math.fp8) put_kind(src);
    put_inputs(src, &math);
    put_arguments(src);
    put_reference(src, &math);
    put_device_run(src, dtype, math.fp8);
    nmlp_str_puts(src->out, "\n\n");
    nmlp_emit_source_line(src, "def main():");
    static const char *const head[] = {
        "    parser = argparse.ArgumentParser(description=__doc__, "
        "formatter_class=argparse.RawDescriptionHelpFormatter)",
        "    parser.add_argument(\"--simulate\", action=\"store_true\", help=\"use NKI's CPU simulator, not a "
        "device\")",
        "    parser.add_argument(\"--iters\", type=int, default=20, help=\"timed calls\")",
        "    options = parser.parse_args()", NULL};
    put_lines(src, head);
    if (!src->legacy) put_environment(src);
    nmlp_emit_source_line(src, "    dtype = %s",
                          dtype == NMLP_NC_BF16   ? "ml_dtypes.bfloat16"
                          : dtype == NMLP_NC_FP16 ? "np.float16"
                                                  : "np.float32");
    put_rounding(src, math.fp8);
    nmlp_emit_source_line(src, "    if options.simulate:");
    nmlp_emit_source_line(
        src, src->legacy ? "        y = nki.simulate_kernel(%s, *args)" : "        y = nki.simulate(%s)(*args)",
        src->p->name);
    static const char *const check[] = {
        "    else:",
        "        y, us = on_device(args, options.iters)",
        "        print(f\"latency {us:.1f} us\")",
        "    want = reference(m)",
        "    error = np.abs(np.asarray(y).astype(np.float64) - want).max() / np.abs(want).max()",
        NULL};
    put_lines(src, check);
    nmlp_emit_source_line(src, "    limit = %s",
                          dtype == NMLP_NC_FP32   ? "1e-4"
                          : dtype == NMLP_NC_FP16 ? "5e-3"
                                                  : "2e-2");
    static const char *const tail[] = {
        "    print(f\"largest error {error:.2e} of the largest value, limit {limit:.0e}\")",
        "    return 0 if error <= limit else 1",
        "",
        "",
        "if __name__ == \"__main__\":",
        "    raise SystemExit(main())",
        NULL};
    put_lines(src, tail);
}
