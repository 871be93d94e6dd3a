"""``python -m fairseq_lasformer`` is the command ``lasformer``."""

from fairseq_lasformer.cli.main import run

run()
