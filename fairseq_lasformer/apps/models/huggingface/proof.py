"""Proof of an imported model: its settings against its weights, its scores against those of Hugging Face's library."""

import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fairseq_lasformer.apps.models.huggingface.family import Imported
from fairseq_lasformer.apps.models.huggingface.folder import Folder
from fairseq_lasformer.base.errors import InputError, in_one_line
from fairseq_lasformer.checkpoints.sizes import COUNT, POSITIONS, WIDTH
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


_COUNTS = re.compile(r".*(layers|heads|beams|experts)$")
_POSITIONS = re.compile(r".*(position|length|num_labels).*")
_OTHER = re.compile(r".*_ids?$|.*token.*")


def check_sizes(folder: Folder) -> None:
    """Refuse settings that ask for a model far larger than the weights in the folder."""
    weights = folder.shapes()
    widest = max([WIDTH, *(size for shape in weights.values() for size in shape)])
    layers = max(COUNT, len(weights))
    for name, value in folder.config.items():
        if type(value) not in (int, float) or _OTHER.fullmatch(name):
            continue
        most = layers if _COUNTS.fullmatch(name) else max(POSITIONS, widest) if _POSITIONS.fullmatch(name) else widest
        if not -most <= value <= most:
            raise InputError(f"{folder.path}: its setting {name} is {str(value)[:20]}, which does not fit its weights")
    width = folder.config.get("d_model")
    for side in ("encoder", "decoder"):
        heads = folder.config.get(f"{side}_attention_heads")
        if type(heads) is int and type(width) is int and (heads < 1 or width % heads):
            raise InputError(
                f"{folder.path}: {side}_attention_heads is {heads}, which does not divide d_model, {width}"
            )
        depth = folder.config.get(f"{side}_layers")
        if type(depth) is int and depth > len(weights):
            raise InputError(f"{folder.path}: {side}_layers is {depth}, more than there are weights")


@contextmanager
def refusing(path: Path, place: Path | None = None, out: Path | None = None) -> Iterator[None]:
    """Blame any failure to convert a folder on the folder, in one line.

    Args:
        place, out: folder that is being written, and what it will be called, for messages.
    """
    try:
        yield
    except InputError as e:
        said = str(e)
        raise InputError(said if place is None else said.replace(str(place), str(out))) from e
    except MemoryError as e:
        raise InputError(f"{path}: there is not enough memory for it") from e
    except Exception as e:  # the folder is a stranger's, and every library that reads it has errors of its own
        raise InputError(f"{path}: cannot be imported ({in_one_line(e)})") from e
