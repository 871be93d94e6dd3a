"""Receipts: records of what a translation was made from, for anybody to repeat it and compare the bytes.

A receipt is a JSON object next to the translated file. Model, data and other files are named by the hash of their
content; their recorded paths help to find them, and prove nothing. They are relative to the receipt's folder: receipts
are given to others, whom the names of users and machines do not concern.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_lasformer.data.subwords import DataConfig, subword_model
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.files import check_regular, file_hash
from fairseq_lasformer.version import __version__

ENDING = ".receipt.json"
"""Ending of a receipt's name, after that of the translated file."""

MOST = 1 << 20
"""Maximum size of a receipt, in bytes."""


class Receipt(NamedTuple):
    """A record of what a translation was made from, and of its hash; all hashes are SHA-256.

    Attributes:
        source, translation: hashes of the two files.
        model: hash of the checkpoint.
        data: hash of the settings, dictionaries and subwords of the prepared folder, which turn text into tokens.
        options: all options that the translation depends on, by name.
        files: hashes of the files that options name, by option.
        places: paths of checkpoint, prepared folder and those files, by name; relative in a file.
        version: version of this package.
    """

    source: str
    translation: str
    model: str
    data: str
    options: Mapping[str, Any]
    files: Mapping[str, str]
    places: Mapping[str, str]
    version: str

    @property
    def key(self) -> str:
        """Hash of everything that determines the translation: equal for translations that must be equal."""
        decisive = {name: value for name, value in self._asdict().items() if name not in ("translation", "places")}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    def text(self, folder: Path) -> str:
        """Return the content of the receipt's file in a folder."""
        places = {name: os.path.relpath(place, folder.resolve()) for name, place in self.places.items()}
        return json.dumps({**self._asdict(), "places": places}, indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> Receipt:
        """Read a receipt, which is untrusted.

        Raises:
            InputError: it is missing, damaged or not a receipt.
        """
        check_regular(path)
        try:
            if path.stat().st_size > MOST:
                raise ValueError
            found = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(found, dict) or set(found) != set(cls._fields):
                raise ValueError
            for name in ("options", "files", "places"):
                if not isinstance(found[name], dict):
                    raise ValueError
            texts = [value for value in found.values() if not isinstance(value, dict)]
            texts += [*found["files"].values(), *found["places"].values()]
            if not all(isinstance(text, str) for text in texts):
                raise ValueError
        except OSError as e:
            raise InputError(f"{path}: cannot be read ({e.strerror})") from e
        except (ValueError, RecursionError) as e:
            raise InputError(f"{path}: not a receipt (lasformer translate --receipt writes them)") from e
        return cls(**found)


class Maker(NamedTuple):
    """A maker of a run's receipts.

    Attributes:
        common: the common part of all receipts; source, translation and ``form`` differ.
    """

    common: Receipt

    @classmethod
    def of(cls, checkpoint: Path, data: Path, options: Mapping[str, Any], files: Mapping[str, Path]) -> Maker:
        """Return the maker for the translations of a model.

        Args:
            data: the prepared folder.
            options: all options that they depend on.
            files: files that options name.
        """
        places = {name: str(path.resolve()) for name, path in {**files, "model": checkpoint, "data": data}.items()}
        hashes = {name: file_hash(path) for name, path in files.items()}
        version = __version__
        return cls(Receipt("", "", file_hash(checkpoint), data_hash(data), dict(options), hashes, places, version))

    def begin(self, source: bytes, form: str) -> Receipt:
        """Return the receipt of a source in a format, before it is translated."""
        options = {**self.common.options, "form": form}
        return self.common._replace(source=hashlib.sha256(source).hexdigest(), options=options)


def data_hash(data: Path) -> str:
    """Return the hash of whatever turns text into tokens and back in a prepared folder."""
    settings = DataConfig.load(data)
    languages = settings.source_lang, settings.target_lang
    dictionaries = [data / f"dict.{language}.txt" for language in languages]
    models = [subword_model(data, settings.bpe, language) for language in settings.models_for]
    decisive = {**asdict(settings), "fingerprint": ""}  # the fingerprint of its inputs does not count
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode())
    for path in [*dictionaries, *models]:
        if path.is_file():
            digest.update(bytes.fromhex(file_hash(path)))
    return digest.hexdigest()


def same(receipt: Receipt, now: Receipt) -> None:
    """Check that everything that a source was translated with is the same now.

    Raises:
        InputError: names what differs.
    """
    for name, what in (("model", "the model"), ("data", "the prepared folder")):
        if getattr(receipt, name) != getattr(now, name):
            raise InputError(f"{what} is not the receipt's: its SHA-256 differs")
    for name, digest in receipt.files.items():
        if digest != now.files.get(name):
            raise InputError(f"--{name}: the file is not the receipt's: its SHA-256 differs")
