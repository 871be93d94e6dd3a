import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Distribution, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
SHARE = "share/fairseq_lasformer"

# scripts/wheel.sh: a wheel that holds the CPU kernels, compiled for every instruction set of this architecture
WITH_KERNELS = bool(os.environ.get("LASFORMER_WHEEL"))


class BuildWithKernels(build_py):
    def run(self) -> None:
        super().run()
        self.copy_file(str(HERE / "fairseq_lasformer.pth"), self.build_lib)
        if WITH_KERNELS:
            import torch

            version = ".".join(torch.__version__.split(".")[:2])
            library = Path(self.build_lib, "fairseq_lasformer", "ops", "cpu", f"kernels.torch{version}.so").absolute()
            command = [sys.executable, "-m", "fairseq_lasformer.ops.cpu.build", str(library)]
            subprocess.run(command, check=True, cwd=HERE)


class WheelOfOneArchitecture(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        # the kernels know nothing of Python
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        return ("py3", "none", platform) if WITH_KERNELS else super().get_tag()


class PerhapsBinary(Distribution):
    def has_ext_modules(self) -> bool:
        return WITH_KERNELS


def shared() -> dict[str, list[str]]:
    """Configurations, recipes and the demo corpus' generator, by folder."""
    found: dict[str, list[str]] = {}
    for top in ("configs", "scripts", "examples", "data/demo"):
        for path in sorted(
            p.relative_to(HERE) for p in (HERE / top).rglob("*") if p.is_file() and p.parent.name != "__pycache__"
        ):
            found.setdefault(str(path.parent), []).append(str(path))
    return found


setup(
    cmdclass={"build_py": BuildWithKernels, "bdist_wheel": WheelOfOneArchitecture},
    distclass=PerhapsBinary,
    name="fairseq_lasformer",
    version=re.search(r'__version__ = "(.+)"', (HERE / "fairseq_lasformer/version.py").read_text())[1],
    description="Document-level neural machine translation with learned sparse attention (Lasformer), for fairseq",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The fairseq_lasformer authors",
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.15",
    packages=find_packages(include=["fairseq_lasformer", "fairseq_lasformer.*"]),
    package_data={
        "fairseq_lasformer": ["py.typed"],
        "fairseq_lasformer.ops.cpu": ["arithmetic/*", "binding/*"],
        "fairseq_lasformer.analysis": ["*.html", "*.css", "*.js"],
        "fairseq_lasformer.apps.server": ["*.html"],
    },
    data_files=[(f"{SHARE}/{folder}", files) for folder, files in shared().items()],
    # fairseq and torch are installed first, by scripts/setup.sh: fairseq declares torchaudio, which nothing here needs
    # and which would replace torch by a build of several GB
    install_requires=[
        "bitarray>=3",
        "cffi>=1.17",
        "charset-normalizer>=3.4",
        "hydra-core==1.3.2",
        "markdown-it-py>=3",
        "mdit-py-plugins>=0.5",
        "numpy>=2",
        "omegaconf==2.3.0",
        "packaging>=24",
        "pyyaml>=6",
        "rapidfuzz>=3.10",
        "regex>=2024.11",
        "sacrebleu>=2.5",
        "sacremoses>=0.1.1",
        "safetensors>=0.5",
        "scikit-learn>=1.6",
        "sentencepiece>=0.2",
        "sentencex>=1.0.30",
        "subword-nmt>=0.3.8",
        "tqdm>=4.67",
    ],
    extras_require={
        "dev": [
            "httpx>=0.28",
            "hypothesis>=6.120",
            "mkdocs-material>=9.6",
            "pymdown-extensions<13",  # of mkdocs-material; 13 is not for Python 3.11.2, that of Debian 12
            "mypy>=1.14",
            "pytest>=8.3",
            "ctranslate2>=4.5",  # a peer of benchmarks
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.6",
            "python-docx>=1.2",
            "ruff>=0.9",
            "selenium>=4.20",
            "transformers>=5",  # to compare imported models with
            "triton>=3.4",
        ],
        # further scores: ctxpro's for outputs of other systems, lines for outputs without them
        "evaluation": ["mweralign>=1.4", "sentence-splitter>=1.4"],
        "build": ["cython>=3", "setuptools>=77", "wheel>=0.45"],
        "tensorboard": ["tensorboardX>=2.6"],
        "server": ["prometheus-client>=0.21", "python-multipart>=0.0.18", "starlette>=0.46", "uvicorn>=0.34"],
        "ray": ["ray[data]>=2.50"],
    },
    entry_points={"console_scripts": ["lasformer=fairseq_lasformer.cli.main:run"]},
)
