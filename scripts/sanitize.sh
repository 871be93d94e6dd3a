#!/usr/bin/env bash
# Run the tests of the CPU kernels with gcc's address and undefined-behaviour sanitizers; any report ends a test.
#
#   scripts/sanitize.sh [option of pytest...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
libraries=$(gcc -print-file-name=libasan.so):$(gcc -print-file-name=libubsan.so)
[ -e "${libraries%%:*}" ] || { echo "error: gcc has no libasan.so; install gcc's sanitizer libraries" >&2; exit 1; }
export LASFORMER_SANITIZE=1
# Python, torch and OpenMP never free what they keep until exit
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export OMP_NUM_THREADS=2
LD_PRELOAD=$libraries exec .venv/bin/python -m pytest -p no:xdist -p no:cacheprovider -m "" \
  tests/ops/test_packed.py tests/ops/test_fixed.py tests/ops/test_instructions.py tests/ops/test_gather.py tests/ops/test_rows.py tests/ops/test_decode.py \
  tests/nn/test_packed_stack.py tests/nn/test_sparse_training.py -k "not triton" "$@"
