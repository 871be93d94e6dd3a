#!/usr/bin/env bash
# Sets up .venv with everything the project needs. Can be interrupted and rerun; does nothing if the setup is complete.
#
#   scripts/setup.sh            PYTHON=python3.12 to choose the interpreter (3.11 to 3.14)
#                               TORCH=torch==2.13.0 the torch to install (2.11 to 2.13); PIP_INDEX_URL and friends apply
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv
torch=${TORCH:-torch==2.13.0}

usable() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; }
if [ -n "${PYTHON:-}" ]; then
  usable "$PYTHON" || { echo "error: PYTHON=$PYTHON is not Python 3.11, 3.12, 3.13 or 3.14" >&2; exit 1; }
else
  for PYTHON in python3 python3.14 python3.13 python3.12 python3.11 none; do usable "$PYTHON" && break; done
  [ "$PYTHON" != none ] || { echo "error: no Python 3.11 to 3.14 found; name one with PYTHON=..." >&2; exit 1; }
fi

mark=$(cat setup.py scripts/setup.sh constraints*.txt fairseq_lasformer.pth | cksum | tr -d ' ')-$torch-$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$(cat $venv/.ready 2>/dev/null || true)" != "$mark" ] || exit 0

say() { echo "setup $*" >&2; }
say "1/6: $("$PYTHON" --version) in $venv"
version() { "$1" -c 'import sys; print(sys.version_info[:2])' 2>/dev/null || true; }
[ "$(version $venv/bin/python)" = "$(version "$PYTHON")" ] && $venv/bin/python -m pip --version >/dev/null 2>&1 ||
  { rm -rf $venv; "$PYTHON" -m venv $venv; }
pip() { $venv/bin/python -m pip --disable-pip-version-check --quiet "$@"; }
say "2/6: $torch (a large download where it is not cached)"
$venv/bin/python -c 'import torch' 2>/dev/null || pip install --progress-bar on "$torch"
say "3/6: what constraints.txt lists, each file by its hash"
# --no-deps: it lists everything but torch, which is there already
pip install --no-deps --no-build-isolation --require-hashes -r <(sed -n '/^setuptools==/,/[^\\]$/p;/^wheel==/,/[^\\]$/p' constraints.txt)
pip install --no-deps --no-build-isolation --require-hashes -r constraints.txt
say "4/6: fairseq (compiled, some 3 minutes)"
# without its dependencies: it declares torchaudio, which would replace torch with a build of several GB
[ "$($venv/bin/python -m pip show fairseq-fixed 2>/dev/null | sed -n 's/^Version: //p')" = 0.12.3.1 ] ||
  pip install --no-deps --no-build-isolation --require-hashes -r constraints-fairseq.txt
say "5/6: this package and its tools"
pip install --no-deps --no-build-isolation -e .
cp fairseq_lasformer.pth "$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
say "6/6: CPU kernels (half a minute)"
$venv/bin/python -c 'from fairseq_lasformer.ops import cpu; cpu.kernels()' 2>&1 | sed -n '/fairseq_lasformer\|no CPU/p' >&2
echo "$mark" >$venv/.ready
say "done"
