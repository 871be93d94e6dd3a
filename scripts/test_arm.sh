#!/usr/bin/env bash
# Compile the CPU kernels' arithmetic for aarch64 and run its tests in an emulator, with and without dot products: floats
# within rounding of `plain`, integers equal, and the same integers as on this machine.
#
# Needs Debian's packages g++-aarch64-linux-gnu and qemu-user; with --if-possible, it is left out where they are missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cross=aarch64-linux-gnu-g++
for tool in $cross qemu-aarch64; do
  command -v $tool >/dev/null && continue
  needed="no $tool; apt-get install g++-aarch64-linux-gnu qemu-user"
  [ "${1:-}" != --if-possible ] || { echo "aarch64 was not tested: $needed" >&2; exit 0; }
  echo "error: $needed" >&2
  exit 1
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

build() {  # compiler, machine, linker option
  mkdir "$work/$2"
  .venv/bin/python -c "
import sys; from pathlib import Path
from fairseq_lasformer.ops.cpu.build import compile_arithmetic
compile_arithmetic(Path(sys.argv[1]), sys.argv[2], sys.argv[3])" "$work/$2" "$1" "$2"
  "$1" -std=c++20 -O1 tests/arithmetic/vectors.cpp "$work/$2"/*.o $3 -o "$work/$2/vectors"
}

build "$cross" aarch64 -static
build "${CXX:-c++}" "$(uname -m)" ""
here=$("$work/$(uname -m)/vectors")
for cpu in max cortex-a57; do  # with and without dot products
  echo "aarch64, $cpu:"
  there=$(qemu-aarch64 -cpu $cpu "$work/aarch64/vectors")
  echo "$there"
  [ "${there##*checksum }" = "${here##*checksum }" ] || { echo "error: integers differ from those of this machine: $here" >&2; exit 1; }
done
