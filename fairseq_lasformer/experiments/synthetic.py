"""Training text written by a model: translations of documents, line by line, without the lines that went wrong."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_copy, atomic_write, beside, check_writable
from fairseq_lasformer.base.resume import Progress, key_of
from fairseq_lasformer.checkpoints.loading import identity
from fairseq_lasformer.data.prepare import prepare
from fairseq_lasformer.data.prepare_config import PrepareConfig
from fairseq_lasformer.data.subwords import data_identity
from fairseq_lasformer.experiments.settings import Tell
from fairseq_lasformer.jobs.collecting import summary
from fairseq_lasformer.jobs.generate import generate
from fairseq_lasformer.text.documents import join_documents, read_lines, split_documents


class Translated(NamedTuple):
    """Settings for generating training text."""

    # source, target: languages of the model that translates
    source: str
    target: str
    checkpoint: Path  # its checkpoint
    data: Path  # its prepared folder
    beam: int  # beam size of the translation
    clean: bool  # replace control characters in the text with spaces instead of rejecting them
    jobs: int = 1  # number of workers that translate
    engine: str = "processes"  # how they are run, see `executors.executor`

    def write_all(self, prefixes: Sequence[str], folder: Path, name: str, command: str, tell: Tell) -> tuple[str, ...]:
        """Translate texts into a folder, or resume where an earlier call stopped.

        Args:
            name: name of the files, without their number.
            command: command that the folder belongs to.
            tell: called with each message.

        Returns:
            the prefixes of the written files, in the order of ``prefixes``.
        """
        check_writable(folder / name)
        progress = Progress(folder, key_of(command))
        progress.open(f"{folder}: belongs to a different run; choose another folder (out)")
        outputs = [folder / f"{name}{i}" for i in range(len(prefixes))]
        for prefix, place in zip(prefixes, outputs):
            self.write(prefix, place, progress, tell)
        return tuple(map(str, outputs))

    def write(self, prefix: str, made: Path, progress: Progress, tell: Tell) -> None:
        """Write ``MADE.SOURCE`` and ``MADE.TARGET``: ``PREFIX.SOURCE`` and its translation.

        Lines that repeat themselves, reached their limit or are empty are left out on both sides, and counted. A
        killed run resumes with the shard that it was translating.

        Args:
            progress: progress of the whole; the translation is one of its stages.
            tell: called with each message.
        """
        file = f"{prefix}.{self.source}"
        try:
            content = Path(file).read_bytes()
        except OSError as e:
            raise InputError(f"{file}: cannot be read ({e.strerror})") from e
        of = key_of(identity(self.checkpoint), data_identity(self.data), content, self.beam)
        progress.run(f"translate {prefix}", lambda: self._translate(prefix, made, tell), of, tell=True)

    def _translate(self, prefix: str, made: Path, tell: Tell) -> None:
        import torch

        place = beside(made, ".data")
        alone = beside(made, ".source")  # a prefix without target: no reference is needed
        atomic_copy(Path(f"{prefix}.{self.source}"), beside(alone, f".{self.source}"))
        config = PrepareConfig(
            self.source, self.target, (), (), (str(alone),), place, reuse=self.data, clean=self.clean
        )
        prepare(config, overwrite=True)
        options = ["--beam", str(self.beam)] + ([] if torch.cuda.is_available() else ["--cpu"])
        translation = beside(made, ".translation")
        done = generate(place, self.checkpoint, translation, options=options, jobs=self.jobs, engine=self.engine)
        assert done is not None
        sources = split_documents(read_lines(f"{alone}.{self.source}", self.clean))
        lines = [[*zip(*pair, strict=True)] for pair in zip(sources, done.documents, strict=True)]
        wrong = {*done.flawed, *((i, j) for i, d in enumerate(lines) for j, line in enumerate(d) if not line[1])}
        right = [[line for j, line in enumerate(d) if (i, j) not in wrong] for i, d in enumerate(lines)]
        for side, language in enumerate((self.source, self.target)):
            text = join_documents([[line[side] for line in document] for document in right if document])
            atomic_write(beside(made, f".{language}"), text)
        left_out = f"; {len(wrong)} lines that went wrong are left out" if wrong else ""
        tell(f"{prefix}: {summary(done._replace(flawed=[]), 'lines')}{left_out}")
