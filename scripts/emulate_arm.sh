#!/usr/bin/env bash
# Translate a file here and, in an emulator, with Python and PyTorch for aarch64, and compare the bytes.
#
#   scripts/emulate_arm.sh CHECKPOINT SOURCE [options of lasformer translate]
#
# Fetches 400 MB for aarch64 into downloads/aarch64, once. Needs Debian's packages g++-aarch64-linux-gnu and qemu-user, and its
# list of packages for aarch64: dpkg --add-architecture arm64; apt-get update. Python must be Debian's version.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ $# -ge 2 ] || { echo "usage: scripts/emulate_arm.sh CHECKPOINT SOURCE [options of lasformer translate]" >&2; exit 1; }
for tool in aarch64-linux-gnu-g++ qemu-aarch64; do
  command -v $tool >/dev/null || { echo "error: no $tool; apt-get install g++-aarch64-linux-gnu qemu-user" >&2; exit 1; }
done
python=$(.venv/bin/python -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
home=$PWD/downloads/aarch64
root=$home/root packages=$home/site-packages

if [ ! -e "$home/fetched" ]; then
  mkdir -p "$home/debs" "$root"
  libraries=(libc6 libstdc++6 libgcc-s1 libgomp1 libopenblas0-pthread libgfortran5 zlib1g libffi8 libssl3 libbz2-1.0)
  libraries+=(liblzma5 libsqlite3-0 libexpat1 libuuid1 "$python" "$python-minimal" "lib$python-stdlib" "lib$python-minimal")
  (cd "$home/debs" && apt-get -q download "${libraries[@]/%/:arm64}")
  for package in "$home"/debs/*.deb; do dpkg -x "$package" "$root"; done
  # 2.10 is the last version whose wheel for aarch64 is without CUDA; packages without compiled parts come from .venv
  compiled=(torch==2.10.0 numpy scipy scikit-learn sentencepiece sentencex regex rapidfuzz safetensors bitarray pyyaml lxml cffi
    markupsafe)
  platforms=(manylinux_2_28_aarch64 manylinux_2_27_aarch64 manylinux_2_17_aarch64 manylinux2014_aarch64)
  .venv/bin/python -m pip -q --disable-pip-version-check install --no-deps --only-binary=:all: "${platforms[@]/#/--platform=}" \
    --python-version "${python#python}" --target "$packages" "${compiled[@]}"
  touch "$home/fetched"
fi
rm -rf "$home/app"
mkdir "$home/app"
cp -r fairseq_lasformer "$home/app"
CXX=aarch64-linux-gnu-g++ .venv/bin/python -m fairseq_lasformer.ops.cpu.build \
  "$home/app/fairseq_lasformer/ops/cpu/kernels.torch2.10.so" aarch64 "$packages/torch"

checkpoint=$1 source=$2
shift 2
export OMP_NUM_THREADS=1
.venv/bin/lasformer translate "$checkpoint" "$@" <"$source" >"$home/here"
export PYTHONSAFEPATH=1 PYTHONPATH=$home/app:$packages:$PWD/.venv/lib/$python/site-packages
for isa in neon_dotprod plain; do
  LASFORMER_ISA=$isa qemu-aarch64 -L "$root" "$root/usr/bin/$python" -m fairseq_lasformer translate "$checkpoint" "$@" \
    <"$source" >"$home/there"
  cmp "$home/here" "$home/there" || { echo "error: aarch64 ($isa) translates differently" >&2; exit 1; }
  echo "aarch64 ($isa): the same $(wc -c <"$home/there") bytes"
done
