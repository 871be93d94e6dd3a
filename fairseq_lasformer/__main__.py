"""``python -m fairseq_lasformer`` is the command ``lasformer``."""

from fairseq_lasformer.cli import run

run()
