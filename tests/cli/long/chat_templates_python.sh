#!/bin/sh
# Chat templates give jinja2's text byte for byte, and fail where it fails. Needs jinja2 (Debian: python3-jinja2).
set -eu
command=$1
root=$2
tool=$(dirname "$command")/tests/nmlp_render_chat
python=""
for candidate in ${PYTHON:-} python3 /usr/bin/python3; do
    if "$candidate" -c 'import jinja2' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "SKIPPED: no python3 with jinja2 (Debian: python3-jinja2); only the committed results were compared" >&2
    exit 77
fi
export PYTHONDONTWRITEBYTECODE=1
"$python" "$root/tests/python/chat_templates.py" "$tool"
# Published templates, which are not ours to copy: any folder of *.jinja.
if [ -n "${NMLP_CHAT_TEMPLATES:-}" ]; then
    "$python" "$root/tests/python/chat_templates.py" "$tool" "$NMLP_CHAT_TEMPLATES"
fi
