"""Settings of a stranger's folder that its weights do not bear out: a model is built before its weights are loaded."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairseq_lasformer.apps.models.huggingface.folder import Folder
from fairseq_lasformer.base.errors import InputError, in_one_line
from fairseq_lasformer.checkpoints.sizes import COUNT, POSITIONS, WIDTH

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
