"""Comparison of an imported model's scores with the original's, if Hugging Face's library is installed."""

import importlib.util
from pathlib import Path

import torch

from fairseq_lasformer.apps.models.huggingface.family import Imported
from fairseq_lasformer.base.errors import InputError, in_one_line
from fairseq_lasformer.documents.hub import from_pretrained

TOLERANCE = 1e-4
"""Largest difference of two scores, relative to the largest score."""


def possible() -> bool:
    """Return whether there is something to compare with."""
    return importlib.util.find_spec("transformers") is not None


@torch.no_grad()
def compared(original: Path, made: Path, imported: Imported) -> str:
    """Run both models on random words, and report how much their scores differ.

    Args:
        original, made: folders of the original and of the imported model.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(
            original, local_files_only=True, trust_remote_code=False
        )
    except Exception as e:  # of many libraries
        raise InputError(
            f"{original}: transformers {transformers.__version__} cannot load it ({in_one_line(e)}); "
            "--no-check imports it without a comparison"
        ) from e
    theirs = theirs.float().eval()
    model = from_pretrained(made).eval().models[0]
    draw = torch.Generator().manual_seed(1)
    source, target = (torch.randint(4, len(rows), (2, 12), generator=draw) for rows in imported.rows)
    source[:, -1] = target[:, 0] = 2  # fairseq's end of sentence, which its decoders begin with
    begun = imported.rows[1][target]
    begun[:, 0] = imported.start
    expected = theirs(input_ids=imported.rows[0][source], decoder_input_ids=begun, use_cache=False).logits
    logits = model(source, torch.tensor([12, 12]), target)[0]
    known = imported.rows[1] >= 0
    difference = float((logits[..., known] - expected[..., imported.rows[1][known]]).abs().max())
    largest = float(expected.abs().max())
    if not difference <= TOLERANCE * largest:
        raise InputError(
            f"{original}: the imported model's scores differ from the original's by {difference:.2g} of {largest:.2g}; "
            "nothing was written"
        )
    return f"same scores as in transformers {transformers.__version__}, to {difference:.1g} of {largest:.2g}"
