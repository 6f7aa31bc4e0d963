#!/bin/sh
# run.sh check|bench|serve [options]: what README.md says. PYTHON chooses the interpreter.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
command=${1:-}
[ $# -gt 0 ] && shift
case $command in
    check) script=check_device.py ;;
    bench) script=bench_device.py ;;
    serve) script=serve.py ;;
    *)
        echo "usage: $0 check|bench|serve [options]; --help after the word lists them" >&2
        exit 2
        ;;
esac
if ! "$python" -c 'import torch, safetensors' 2>/dev/null; then
    echo "$python has no torch or safetensors: activate the Neuron PyTorch environment, or set PYTHON" >&2
    exit 2
fi
ranks=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["tp"])' "$here/manifest.json")
if [ "$command" = check ] && [ "$ranks" -gt 1 ]; then
    exec "$python" -m torch.distributed.run --standalone --nproc-per-node "$ranks" "$here/$script" "$@"
fi
exec "$python" "$here/$script" "$@"
