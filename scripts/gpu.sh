#!/usr/bin/env bash
# Check and measure what needs a GPU, what matters most first; write runs/gpu/gpu.json, with every row.
#
#   scripts/gpu.sh                          on a machine with a GPU: 150 seconds
#   SECONDS_LEFT=900 scripts/gpu.sh         all sections
#   SECTIONS=training,decoding scripts/gpu.sh
#   DEVICE=cpu QUICK=1 scripts/gpu.sh       tries the script without a GPU, with the smallest sizes
#
# Without network: put the wheels that the machine lacks into .whl/. They are installed into a temporary environment over
# the packages of PYTHON, together with the project; neither pip nor any command needs to be on the path.
# Variables: PYTHON (default: .venv/bin/python, or python3), OUT (runs/gpu), SECONDS_LEFT (145), DEVICE, QUICK, SECTIONS.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
device=${DEVICE:-cuda} out=${OUT:-runs/gpu}
if compgen -G ".whl/*.whl" >/dev/null; then
  place=$(mktemp -d)
  trap 'rm -rf "$place"' EXIT
  "$python" -m venv --without-pip "$place"
  "$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' >"$(ls -d "$place"/lib/python3*/site-packages)/parent.pth"
  "$python" -m pip --python "$place/bin/python" install --quiet --no-index --no-deps --no-compile --no-cache-dir .whl/*.whl
  python=$place/bin/python
fi
export PYTHONPATH=$PWD:${PYTHONPATH:-}
if [ "$device" = cpu ]; then
  export TRITON_INTERPRET=1
fi
options=(--device "$device" --out "$out" --seconds "${SECONDS_LEFT:-145}")
[ -z "${QUICK:-}" ] || options+=(--quick)
[ -z "${SECTIONS:-}" ] || options+=(--sections "$SECTIONS")
"$python" -m benchmarks.gpu "${options[@]}"
