"""Compile the CPU kernels: their arithmetic once for each instruction set, and its binding to PyTorch.

One library serves every processor of an architecture: the instructions are chosen when it runs
(``arithmetic/dispatch.cpp``). ``python -m fairseq_lasformer.ops.cpu.build LIBRARY`` writes it to a file, for a wheel;
with ``MACHINE TORCH_FOLDER``, for another architecture, whose compiler is named by ``CXX``.
"""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
ARITHMETIC, BINDING = HERE / "arithmetic", HERE / "binding"
SOURCES = sorted([*ARITHMETIC.glob("*.cpp"), *BINDING.glob("*.cpp")])
HEADERS = sorted([*ARITHMETIC.glob("*.h"), *BINDING.glob("*.h")])

# fused operations are written explicitly, so that all instruction sets give the same bits
COMMON = ["-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]
EXACT = ["-fno-math-errno", "-fno-trapping-math"]

_AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mprefer-vector-width=512"]
# instruction sets by architecture, named as in arithmetic/dispatch.cpp
TARGETS = {
    "x86_64": {
        "avx512_amx": [*_AVX512, "-mavx512vnni", "-mamx-tile", "-mamx-int8"],
        "avx512_vnni": [*_AVX512, "-mavx512vnni"],
        "avx512": _AVX512,
        "avx2_vnni": ["-mavx2", "-mfma", "-mavxvnni"],
        "avx2": ["-mavx2", "-mfma"],
        "plain": [],
        "plain_fused": ["-DLASFORMER_FUSED"],
    },
    "aarch64": {"neon_dotprod": ["-march=armv8.2-a+dotprod"], "plain": []},
}
if os.environ.get("LASFORMER_SANITIZE"):  # scripts/sanitize.sh
    COMMON += ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]


def targets(machine: str = "") -> dict[str, list[str]]:
    """Return the instruction sets of an architecture (default: this machine's), each with compiler options."""
    machine = machine or platform.machine()
    return TARGETS.get({"AMD64": "x86_64", "arm64": "aarch64"}.get(machine, machine), {"plain": []})


def compiler() -> str:
    """Return the C++ compiler: ``CXX``, or the first that is installed.

    Raises:
        OSError: there is none.
    """
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and shutil.which(name):
            return name
    raise OSError("no C++ compiler (install g++ 12 or newer, or a wheel that contains the kernels)")


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.splitlines() or [f"exit code {done.returncode}"]
        raise OSError(next((line for line in lines if "error" in line), lines[0]))


def compile_arithmetic(folder: Path, cxx: str, machine: str = "") -> list[Path]:
    """Compile the sources without PyTorch, for any architecture that the compiler targets; return the objects."""
    return _compile(_arithmetic(folder, cxx, machine))


def _arithmetic(folder: Path, cxx: str, machine: str = "") -> dict[Path, list[str]]:
    once = sorted(path for path in ARITHMETIC.glob("*.cpp") if path.name != "arithmetic.cpp")
    jobs = {folder / f"{path.stem}.o": [str(path)] for path in once}
    for name, options in targets(machine).items():
        define = f"-DLASFORMER_TARGET={name}"
        jobs[folder / f"{name}.o"] = [*EXACT, *options, define, str(ARITHMETIC / "arithmetic.cpp")]
    return {target: [cxx, *COMMON, *options, "-c", "-o", str(target)] for target, options in jobs.items()}


def _compile(jobs: dict[Path, list[str]]) -> list[Path]:
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(_run, jobs.values()))
    return list(jobs)


def build(library: Path, work: Path, machine: str = "", torch_folder: Path | None = None) -> None:
    """Compile and link the library of kernels.

    Args:
        work: an empty folder for intermediate files.
        machine: the architecture that ``CXX`` targets (default: this machine's).
        torch_folder: the package ``torch`` for that architecture (default: the installed one).

    Raises:
        OSError: the compiler is missing, or reports an error.
    """
    import torch

    cxx = compiler()
    home = torch_folder or Path(torch.__file__).parent
    include = [f"-isystem{home / path}" for path in ("include", "include/torch/csrc/api/include")]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    binding = work / "binding.cpp"  # one file: PyTorch's headers take most of the time, and are then read once
    binding.write_text("".join(f'#include "{path}"\n' for path in SOURCES if path.parent == BINDING), encoding="utf-8")
    bound = work / "binding.o"
    jobs = {bound: [cxx, *COMMON, "-fopenmp", abi, *include, "-c", str(binding), "-o", str(bound)]}
    objects = list(_compile(jobs | _arithmetic(work, cxx, machine)))
    sanitize = [option for option in COMMON if option.startswith("-fsanitize")]
    _run(
        [cxx, "-shared", "-fopenmp", "-o", str(library), *map(str, objects), *sanitize]
        + [f"-L{home / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"]
    )


def main() -> None:
    import tempfile

    if len(sys.argv) not in (2, 4):
        sys.exit("usage: python -m fairseq_lasformer.ops.cpu.build LIBRARY [MACHINE TORCH_FOLDER]")
    library, *other = sys.argv[1:]
    with tempfile.TemporaryDirectory() as work:
        try:
            build(Path(library), Path(work), *((other[0], Path(other[1])) if other else ()))
        except OSError as e:
            sys.exit(f"error: {e}")


if __name__ == "__main__":
    main()
