"""Configuration files in YAML, read within bounds: aliases may stand for more than there is memory for."""

import unicodedata
from pathlib import Path
from typing import Any

import yaml

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import check_regular

BYTES, VALUES = 1 << 20, 10_000
"""Size of a file, and number of names and values, what aliases stand for included."""


def read_yaml(path: Path) -> dict[Any, Any]:
    """Read names and values.

    Raises:
        InputError: the file does not exist, is not YAML, or exceeds the limits.
    """
    check_regular(path, "; expected a configuration file, see examples/own_data.yaml")
    try:
        if path.stat().st_size > BYTES:
            raise InputError(f"{path}: larger than {BYTES >> 20} MiB, so no configuration")
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from e
    except RecursionError as e:
        raise InputError(f"{path}: not YAML (too deep)") from e
    except (yaml.YAMLError, ValueError) as e:
        raise InputError(f"{path}: not YAML ({' '.join(str(e).split())[:200]})") from e
    if not isinstance(given, dict):
        raise InputError(f"{path}: expected names and values; see examples/own_data.yaml")
    _check(path, given)
    return given


def words(path: Path, where: str, value: object) -> tuple[str, ...]:
    """Return a list of words, those under a name of a file; none for no value."""
    if not isinstance(value, list | None) or any(isinstance(word, list | dict | None) for word in value or ()):
        raise InputError(f"{path}: {where}: expected a list of words, such as [--clip-norm, 1.0]")
    return tuple(map(str, value or ()))


def _check(path: Path, given: Any) -> None:
    """Refuse too many values, and characters that no name or file has."""
    left, number = [given], 0
    while left:
        value, number = left.pop(), number + 1
        if number > VALUES:
            raise InputError(f"{path}: more than {VALUES:,} names and values")
        if isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list):
            left += value
        elif isinstance(value, str) and any(unicodedata.category(c) in ("Cc", "Cs") for c in value):
            raise InputError(f"{path}: {value[:40]!r}: contains a control character")
