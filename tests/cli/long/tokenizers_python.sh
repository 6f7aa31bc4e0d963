#!/bin/sh
# Tokenizers of every kind give the ids and the text of Hugging Face's `tokenizers`, sentencepiece and tiktoken on 2,000
# strings each. Needs those from PyPI, in the python3 that PYTHON names.
set -eu
command=$1
root=$2
tool=$(dirname "$command")/tests/nmlp_tokenize_lines
python=""
for candidate in ${PYTHON:-} python3; do
    if "$candidate" -c 'import tokenizers, sentencepiece, tiktoken' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "SKIPPED: no python3 with tokenizers, sentencepiece and tiktoken (PyPI); only the committed vectors were compared" >&2
    exit 77
fi
export PYTHONDONTWRITEBYTECODE=1
"$python" "$root/tests/python/tokenizer_compare.py" "$tool"
