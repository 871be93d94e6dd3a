"""``--isa``: the instructions that a benchmark's systems may use, the same for all of them."""

from __future__ import annotations

import os
import sys

# of our kernels, PyTorch, oneDNN, MKL and CTranslate2
VARIABLES = (
    "LASFORMER_ISA",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "CT2_FORCE_CPU_ISA",
)
SETS = {
    "plain": ("plain", "default", "SSE41", "SSE4_2", "GENERIC"),
    "avx2": ("avx2", "avx2", "AVX2", "AVX2", "AVX2"),
    "avx2_vnni": ("avx2_vnni", "avx2", "AVX2_VNNI", "AVX2", "AVX2"),
    "avx512": ("avx512", "avx512", "AVX512_CORE", "AVX512", "AVX512"),
    "avx512_vnni": ("avx512_vnni", "avx512", "AVX512_CORE_VNNI", "AVX512_E1", "AVX512"),
    "avx512_amx": ("avx512_amx", "avx512", "AVX512_CORE_AMX", "AVX512_E4", "AVX512"),
}


def environment(isa: str) -> dict[str, str]:
    """Return the variables of an instruction set; none for an empty or unknown name, such as another architecture's."""
    return dict(zip(VARIABLES, SETS.get(isa, ())))


def restrict(isa: str) -> None:
    """Restart this program with the instruction set's variables, which the libraries read when they are loaded.

    Do nothing if they are set already.
    """
    wanted = environment(isa)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | wanted)
