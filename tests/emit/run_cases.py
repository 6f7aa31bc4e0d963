"""Runs emitted kernels in the NumPy stand-in for NKI and compares them with the simulator and with float64.

usage: run_cases.py EMIT_CASE_TOOL PROGRAM_FOLDER

Every case is emitted, compiled, executed unmodified, and its result compared:
  - with the C simulator's values: bit for bit, or within one flip of the bf16 rounding where exp is involved (NumPy's and
    libm's exp may differ in the last bit of fp32) or where fp32 products are not exact;
  - the number of instructions executed with the simulator's;
  - with float64: 2e-2 of the largest value, which is 4 eps sqrt(B) for eps = 2^-9 (bf16) and the 6 roundings that a value of
    these small shapes passes at most.
"""
import importlib.util
import os
import py_compile
import re
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "nki_shim"))

TOOL, PROGRAMS = sys.argv[1], sys.argv[2]

# kernel:S,H[,R],O[:tiling[:dtype[:ranks of gate/up/down[/shared][:fused or fp8]]]]; decode (S = 1 … 16), prefill, and edges in every dimension
CASES = """
xw-tiled:130,140,520
xw-hoist:64,300,513
xw-block:257,130,1100
xw-opt:1,256,512
xw-opt:16,300,700:k=2
xw-opt:256,256,1024:m=2,n=2,k=2
xw-opt:300,513,1300:m=2,n=1,k=2
xw-opt:129,127,511
xw-opt:96,200,600::fp32
xw-opt:96,200,600::fp16
xuv-seq:150,260,130,520
xuv-seq:1,128,128,512
xuv-fused:1,256,128,512
xuv-fused:300,300,130,700:k=2,n=1,m=1,r=1
xuv-fused:130,384,256,1024
xtuv-fused:7,200,100,300
xtuv-fused:260,512,384,1100:k=2,n=2,m=2,r=2
xuv-naive:130,256,128,520
xuv-turned:130,256,128,300
xtuv-turned:5,200,140,300
mlp-up-paper:130,256,128,300
mlp-paper:70,200,140,300
xw:100,300,500
xuv:1,256,128,512
xuv:5,300,140,260
xuv:130,384,256,640
xuv:600,256,128,300
xuv:300,200,130,530:x=1
xuv:64,520,200,300:x=2,xc=2
xuv:64,640,128,256:x=3,xc=2
mlp:1,256,0,384
mlp:130,200,0,300
mlp:64,256,0,640:ac=2
mlp:1,256,128,512
mlp:5,300,140,260
mlp:260,256,128,384
mlp:64,256,128,640:ac=2
mlp:100,384,128,256:x=1
mlp:1,256,128,512:shared=1
mlp:70,300,140,520:shared=1
xw:513,513,1
xuv-fused:512,200,1,2:m=2,r=1,k=3,n=3
xuv-turned:127,128,128,256:m=3,r=3,k=2,n=2
xuv:128,640,130,513:x=2,xc=1
mlp:129,129,128,513:x=3,xc=1
mlp:2,1,1,1:x=1
mlp:20,128,640,256:wkb=1
mlp:3,600,128,256:cols=128,tail=2,on=2,wkb=1
xuv:130,256,128,1100:tail=1,oring=2,okb=4
xw:20,256,900:tail=2,cols=256
mlp:64,256,128,768:ac=3,wkb=1
mlp:40,1280,128,256:cols=128,on=5,wkb=1,tail=0
mlp:270,1100,130,200:x=4,xc=8,xl=8
xuv:140,1200,260,300:x=4,xc=8,xl=8
mlp:3,300,400,900:taper=2,oring=2,okb=1,cols=128
mlp:100,300,640,1100:taper=1,oring=1,okb=2,cols=128
xuv:20,256,300,700:taper=3
xw:5,300,900:taper=1,cols=256
mlp:9,256,0,500:taper=2
mlp:1,256,0,512:::112/112/0/shared
mlp:130,300,0,520:::112/112/0/shared
mlp:37,300,0,260:::0/112/130
mlp:5,640,0,300:::200/0/0
mlp:260,256,0,384:::112/240/128
mlp:20,200,0,640:wkb=1::300/100/0
mlp:140,1200,0,600:x=4,xc=8,xl=8::130/300/70
mlp:3,300,0,900:taper=2,oring=2,okb=1,cols=128::0/0/400
mlp:70,300,0,520:ac=2::0/0/130
mlp:1,256,128,512::::norm+residual
mlp:130,200,0,300::::norm+residual
mlp:64,256,0,640:ac=2:::norm+residual
mlp:260,300,0,384:::112/112/0/shared:norm
mlp:37,300,0,260:::0/112/130:norm+residual
mlp:3,600,128,256:cols=128,tail=2,on=2,wkb=1:::residual
mlp:9,256,0,500:taper=2:::norm+residual
mlp:600,256,0,384:::112/240/128:norm+residual
mlp:20,200,64,300::fp32::norm+residual
mlp:20,200,64,300::fp16::norm+residual
mlp:1,256,0,512::::fp8
mlp:130,200,0,300::::fp8
mlp:5,300,140,260::::fp8
mlp:260,256,128,384::::fp8
mlp:1,256,0,512:::112/112/0/shared:fp8
mlp:37,300,0,260:::0/112/130:fp8
mlp:600,256,0,384:::112/240/128:fp8
mlp:3,600,128,256:cols=128,tail=2,on=2,wkb=1:::fp8
mlp:9,256,0,500:taper=2:::fp8
mlp:100,300,640,1100:taper=1,oring=1,okb=2,cols=128:::fp8
mlp:20,200,64,300::fp16::fp8
mlp:100,384,128,256:x=1:::fp8
mlp:1,256,0,512::::fp8+norm+residual
mlp:130,200,0,300::::fp8+norm+residual
mlp:37,300,0,260:::0/112/130:fp8+norm
mlp:600,256,0,384:::112/240/128:fp8+norm+residual
mlp:5,300,140,260::::fp8+residual
mlp:1,600,0,256:cols=128,turn=1,tail=1,on=2
mlp:9,600,140,256:cols=128,turn=2,taper=1,on=2:::fp8+norm+residual
mlp:9,600,0,256:cols=128,turn=1,tail=1,on=2:::norm+residual
mlp:3,600,128,256:cols=128,turn=2,tail=2,on=3,wkb=1
mlp:20,300,64,300:cols=128,turn=1,taper=2:fp32
mlp:1,600,140,256:cols=128,turn=1,taper=1,on=2:::fp8
mlp:5,600,0,300:cols=128,turn=2,tail=1,on=2:::fp8
""".split()

TARGETS = {"nki": ("trn2", "trn3"), "nki-legacy": ("trn1",)}


def tool(*words):
    done = subprocess.run([TOOL, *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def load(path):
    py_compile.compile(path, doraise=True)
    for name in [n for n in sys.modules if n in ("nki", "neuronxcc") or n.startswith(("nki.", "neuronxcc."))]:
        del sys.modules[name]
    spec = importlib.util.spec_from_file_location("emitted", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tensors_of(target, spec):
    rows = [line.split() for line in tool("tensors", target, spec).splitlines()]
    return [(name, role, dtype, int(r), int(c)) for name, role, dtype, r, c in rows]


def rounded(array, dtype):
    from nki_shim_core import marked, rounded as to_dtype
    name = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "float8_e4m3"}[dtype]
    return marked(to_dtype(array, name), name)


def make_arguments(module, tensors):
    """Arguments of the kernel and, where the file knows its mathematics, the matrices they come from."""
    given = [t for t in tensors if t[1] in ("input", "weight")]
    if not hasattr(module, "inputs"):
        rng = np.random.default_rng(1)
        return [rounded(rng.standard_normal((r, c)), dtype) for _, _, dtype, r, c in given], None
    dtype = given[0][2]
    def kind(name):  # of kernels with weights in fp8: matrices are codes, scales stay as they are
        if not any(t[2] == "fp8" for t in given) or name == given[0][0]:
            return dtype
        return "fp32" if name.endswith("_scale") or name == "norm" else "fp8"

    matrices = {name: rounded(a, kind(name)) for name, a in module.inputs(1).items()}
    return [rounded(a, t[2]) for a, t in zip(module.arguments(matrices), given)], matrices


def simulate(target, spec, arguments, tensors, folder):
    args, out = os.path.join(folder, "args.bin"), os.path.join(folder, "out.bin")
    with open(args, "wb") as file:
        for a in arguments:
            np.ascontiguousarray(a, dtype=np.float32).tofile(file)
    tool("values", target, spec, args, out)
    values, results = np.fromfile(out, dtype=np.float32), []
    for _, role, _, rows, cols in tensors:
        if role == "output":
            results.append(values[:rows * cols].reshape(rows, cols))
            values = values[rows * cols:]
    return results


def compare(got, want, exact):
    """None, or what differs."""
    got, want = np.asarray(got, dtype=np.float32), np.asarray(want, dtype=np.float32)
    if np.array_equal(got, want):
        return None
    error = float(np.abs(got - want).max() / np.abs(want).max())
    if not exact and error <= 2.0 ** -8:
        return None
    return f"{int((got != want).sum())} of {got.size} values differ from the simulator, by up to {error:.2e}"


def run_case(target, dialect, spec, folder):
    path = os.path.join(folder, "emitted.py")
    text = tool("emit", target, dialect, spec)
    if text != tool("emit", target, dialect, spec):
        return "emitted twice, two different files"
    with open(path, "w") as file:
        file.write(text)
    os.environ["NKI_SHIM_TARGET"] = target
    module = load(path)
    tensors = tensors_of(target, spec)
    arguments, matrices = make_arguments(module, tensors)
    kernel = next(f for f in vars(module).values() if getattr(f, "is_kernel", False))
    from nki_shim_core import instructions
    instructions[0] = 0
    got = kernel(*arguments)
    counted = int(re.search(r"Instructions: ([0-9,]+)", kernel.__doc__).group(1).replace(",", ""))
    if instructions[0] != counted:  # what is printed is what was simulated: no padding, no fills
        return f"{instructions[0]} instructions were executed, the simulator has {counted}"
    got = got if isinstance(got, tuple) else (got,)
    want = simulate(target, spec, arguments, tensors, folder)
    uses_exp = "silu" in text or "gelu" in text or "sigmoid" in text or "exp" in text.split("def reference")[0]
    fp32 = any(t[2] == "fp32" for t in tensors)  # fp32 products are rounded once by FMA and twice by NumPy
    for g, w in zip(got, want):
        problem = compare(g, w, exact=not (uses_exp or fp32))
        if problem:
            return problem
    if matrices is not None:
        truth = module.reference(matrices)
        error = float(np.abs(got[0].astype(np.float64) - truth).max() / np.abs(truth).max())
        if error > 2e-2:
            return f"off float64 by {error:.2e}"
    if dialect == "nki-legacy":  # backwards, an affine loop must give the same up to the order of its sums
        os.environ["NKI_SHIM_REVERSE"] = "1"
        try:
            again = kernel(*arguments)
        finally:
            del os.environ["NKI_SHIM_REVERSE"]
        again = again if isinstance(again, tuple) else (again,)
        for g, a in zip(got, again):
            if compare(a, g, exact=False):
                return f"backwards affine loops: {compare(a, g, exact=False)}"
    return None


def main():
    programs = sorted(os.path.join(PROGRAMS, name) for name in os.listdir(PROGRAMS) if name.endswith(".tile"))
    count = {dialect: 0 for dialect in TARGETS}
    failures = []
    only = sys.argv[3] if len(sys.argv) > 3 else ""
    with tempfile.TemporaryDirectory() as folder:
        for dialect, targets in TARGETS.items():
            for number, spec in enumerate(CASES + programs):
                if only not in spec:
                    continue
                target = targets[number % len(targets)]
                try:
                    problem = run_case(target, dialect, spec, folder)
                except Exception as error:  # a refusal of the stand-in is a failure of the case
                    problem = f"{type(error).__name__}: {error}"
                count[dialect] += 1
                if problem:
                    failures.append(f"{target} {dialect} {spec}: {problem}")
                    print("FAILED", failures[-1], flush=True)
    for dialect, n in count.items():
        print(f"{dialect}: {n} cases")
    print(f"{len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
