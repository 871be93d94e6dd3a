#!/usr/bin/env bash
# Check and measure everything that needs a GPU, in one call of about ten minutes; write runs/gpu/gpu.json.
#
#   scripts/gpu.sh                          on a machine with a GPU
#   SECTIONS=training,decoding scripts/gpu.sh
#   DEVICE=cpu QUICK=1 scripts/gpu.sh       tries the script without a GPU, with the smallest sizes
#
# Without network: put the wheels that the machine lacks into .whl/; they are installed into a separate folder.
# Variables: PYTHON (default: .venv/bin/python, or python3), OUT (runs/gpu), SECONDS_LEFT (520), DEVICE, QUICK, SECTIONS.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
device=${DEVICE:-cuda} out=${OUT:-runs/gpu}
if compgen -G ".whl/*.whl" >/dev/null; then
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  "$python" -m pip install --quiet --no-index --no-deps --target "$site" .whl/*.whl
  export PYTHONPATH=$site:${PYTHONPATH:-}
fi
export PYTHONPATH=$PWD:${PYTHONPATH:-}
if [ "$device" = cpu ]; then
  export TRITON_INTERPRET=1
fi
options=(--device "$device" --out "$out" --seconds "${SECONDS_LEFT:-520}")
[ -z "${QUICK:-}" ] || options+=(--quick)
[ -z "${SECTIONS:-}" ] || options+=(--sections "$SECTIONS")
"$python" -m benchmarks.gpu "${options[@]}"
