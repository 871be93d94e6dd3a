"""Files beside the package: those of the clone, or those installed with it."""

import sysconfig
from pathlib import Path


def shared(name: str) -> Path:
    """Return a folder such as ``configs``: the clone's, or the one installed with the package."""
    clone = Path(__file__).resolve().parents[1] / name
    return clone if clone.is_dir() else Path(sysconfig.get_path("data")) / "share/fairseq_lasformer" / name


def model_path(model: str | Path) -> Path:
    """Return the place of a model: a path as it is, or the folder of a model that comes with the clone, by its name."""
    place = Path(model)
    if not place.exists() and len(place.parts) == 1 and (held := shared("data/models") / place).is_dir():
        return held
    return place
