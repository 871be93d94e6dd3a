#!/usr/bin/env bash
# Compare 8-bit products by matrix tiles (AMX) with those of other instructions, bit by bit, in Bochs, an emulator of a PC.
#
#   scripts/emulate_amx.sh BOCHS      the folder of Bochs's sources, with the program built:
#     ./configure --with-nogui --enable-x86-64 --enable-avx --enable-evex --enable-amx && make bochs
#
# Bochs 3.0 of August 2026 takes signed bytes for unsigned ones in TDPBUSD (DPBDUS in cpu/avx/amx.cc: ybyte must be Bit8s).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ -x "${1:-}/bochs" ] || { echo "usage: scripts/emulate_amx.sh BOCHS" >&2; exit 1; }
bochs=$(realpath "$1") cxx=${CXX:-g++} work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

bare=(-std=c++20 -O2 -w -fno-exceptions -fno-rtti -fno-pic -fno-stack-protector -mno-red-zone)
for target in plain avx512_vnni avx512_amx; do
  read -ra flags < <(.venv/bin/python -c "
import sys
from fairseq_lasformer.ops.cpu.build import EXACT, TARGETS
print(*EXACT, *TARGETS['x86_64'][sys.argv[1]])" $target)
  "$cxx" "${bare[@]}" "${flags[@]}" -DLASFORMER_TARGET=$target -c fairseq_lasformer/ops/cpu/arithmetic/arithmetic.cpp \
    -o "$work/$target.o"
done
"$cxx" "${bare[@]}" -ffreestanding -c tests/arithmetic/tiles.cpp -o "$work/tiles.o"
cat >"$work/link.ld" <<'END'
ENTRY(start)
SECTIONS {
  . = 0x10000;
  .text : { *(.text.start) *(.text*) *(.rodata*) *(.data*) }
  .bss : { *(.bss*) }
  /DISCARD/ : { *(.eh_frame*) *(.note*) *(.comment) }
}
END
ld -T "$work/link.ld" "$work"/{tiles,plain,avx512_vnni,avx512_amx}.o -o "$work/program" --no-warn-rwx-segments
objcopy -O binary "$work/program" "$work/program.bin"
as tests/arithmetic/boot.S -o "$work/boot.o"
ld -Ttext 0x7c00 --oformat binary "$work/boot.o" -o "$work/boot.bin"
[ "$(stat -c %s "$work/program.bin")" -lt $((699 * 512)) ] || { echo "error: more than the sectors that boot.S reads" >&2; exit 1; }
cat "$work"/{boot,program}.bin >"$work/floppy.img"
truncate -s 1440K "$work/floppy.img"
cat >"$work/bochsrc" <<END
romimage: file=$bochs/bios/BIOS-bochs-latest
vgaromimage: file=$bochs/bios/VGABIOS-lgpl/VGABIOS-lgpl-latest.bin
cpu: model=sapphire_rapids
memory: guest=128, host=128
floppya: 1_44=$work/floppy.img, status=inserted
boot: floppy
port_e9_hack: enabled=1
display_library: nogui
log: $work/log
END
timeout 300 "$bochs/bochs" -q -f "$work/bochsrc" >"$work/printed" 2>/dev/null &
for _ in $(seq 300); do
  grep -qa "differ" "$work/printed" && break
  sleep 1
done
kill %1 2>/dev/null || true
grep -ao "[0-9]* sums, [0-9]* differ" "$work/printed" || { tail -5 "$work/log" >&2; echo "error: Bochs printed nothing" >&2; exit 1; }
grep -qa " 0 differ" "$work/printed"
