"""The kernels' build: killed, foreign, for a different processor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from helpers import ROOT

from fairseq_lasformer.ops import cpu
from fairseq_lasformer.ops.cpu import build, loading


@pytest.mark.sweep
def test_a_killed_build_hinders_nobody_and_foreign_libraries_are_not_loaded(tmp_path):
    environment = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache")}
    # without -O3, as there are three builds here
    code = "from fairseq_lasformer.ops.cpu import build, kernels; build.COMMON.remove('-O3'); "
    ask = [sys.executable, "-c", f"{code}print(kernels() is not None)"]
    killed = subprocess.Popen(ask, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)
    for _ in range(600):
        if list(tmp_path.glob("cache/*/build.*/*.o")):
            break
        time.sleep(0.1)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not list(tmp_path.glob("cache/*/kernels.*.so"))

    def load() -> tuple[bool, bool]:
        done = subprocess.run(ask, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
        return "True" in done.stdout, "building the CPU kernels" in done.stderr

    assert load() == (True, True)
    assert load() == (True, False)
    (library,) = tmp_path.glob("cache/*/kernels.*.so")
    whole = library.read_bytes()
    library.write_bytes(whole[: len(whole) // 2])  # loading it would end the process
    assert load() == (True, True)
    assert library.read_bytes()[:1000] == whole[:1000] or len(list(library.parent.glob("kernels.*.so"))) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_library_that_others_can_write_is_not_loaded(tmp_path):
    path = tmp_path / "kernels.x.so"
    path.write_bytes(b"x")
    assert loading._private(path)
    path.chmod(0o666)
    assert not loading._private(path)
    path.chmod(0o600)
    os.chown(path, 65534, 65534)
    assert not loading._private(path)
    (tmp_path / "link").symlink_to(path)
    assert not loading._private(tmp_path / "link")


@pytest.mark.sweep
def test_a_wheels_library_needs_no_setuptools():
    code = "import sys; sys.modules['setuptools'] = None; from fairseq_lasformer.ops.cpu import loading; "
    code += "from pathlib import Path; loading.PACKAGED = Path(sys.argv[1]); print(loading.kernels() is not None)"
    library = loading._built(loading._folder()) or loading._build(loading._folder())
    done = subprocess.run([sys.executable, "-c", code, library], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "True" in done.stdout, done.stderr


@pytest.mark.sweep
def test_no_instruction_set_lends_code_to_another_and_all_agree_with_plain(tmp_path):
    """If several objects define a function, the linker takes one, possibly one that this processor cannot run."""
    objects = build.compile_arithmetic(tmp_path, build.compiler())
    vectors = [
        build.compiler(),
        "-std=c++20",
        "-O1",
        ROOT / "tests/arithmetic/vectors.cpp",
        *objects,
        "-o",
        tmp_path / "vectors",
    ]
    subprocess.run(vectors, check=True)
    printed = subprocess.run([tmp_path / "vectors"], capture_output=True, text=True, check=True).stdout
    assert "plain: " in printed and " 0 wrong" in printed
    assert {made.stem for made in objects} == {*build.targets(), "dispatch", "mixture"}
    for made in objects:
        if made.stem not in build.targets():  # compiled for every processor
            continue
        symbols = subprocess.run(["nm", "-C", made], capture_output=True, text=True, check=True).stdout.splitlines()
        shared = [line for line in symbols if " W " in line or " V " in line or " u " in line]
        assert [line for line in shared if made.stem not in line] == []
        assert any(" R lasformer::" in line or " D lasformer::" in line for line in symbols)


@pytest.mark.sweep
def test_products_by_matrix_tiles_agree_with_plain_where_tiles_are_defined_in_software(tmp_path):
    """Takes the place of the best set with VNNI here, whose numbers have the same form; scripts/emulate_amx.sh."""
    replaced = next((name for name in ("avx512_vnni", "avx2_vnni") if name in cpu.instruction_sets()), None)
    if replaced is None:
        pytest.skip("needs a processor with VNNI")
    flags = build.TARGETS["x86_64"]
    build.TARGETS["x86_64"] = {**flags, replaced: [*flags[replaced], "-DLASFORMER_SOFTWARE_TILES"]}
    try:
        objects = build.compile_arithmetic(tmp_path, build.compiler())
    finally:
        build.TARGETS["x86_64"] = flags
    symbols = subprocess.run(["nm", tmp_path / f"{replaced}.o"], capture_output=True, text=True, check=True).stdout
    assert "software_tiles" in symbols
    made = [build.compiler(), "-std=c++20", "-O1", ROOT / "tests/arithmetic/vectors.cpp", *objects]
    subprocess.run([*made, "-o", tmp_path / "vectors"], check=True)
    printed = subprocess.run([tmp_path / "vectors"], capture_output=True, text=True, check=True).stdout
    assert next(line for line in printed.splitlines() if line.startswith(f"{replaced}:")).endswith(" 0 wrong")


@pytest.mark.parametrize("wanted", ["avx1024", "; rm -rf /"])
def test_instructions_that_are_not_there_are_refused_in_one_line(wanted):
    code = "from fairseq_lasformer.ops import cpu; cpu.kernels()"
    environment = os.environ | {"LASFORMER_ISA": wanted}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode and f"LASFORMER_ISA={wanted}: not available on this machine; choose one of " in last
