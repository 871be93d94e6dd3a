"""Model folder as written by Hugging Face's library: settings, weights, vocabulary. Nothing in it is run."""

import json
from pathlib import Path
from typing import Any

from torch import Size, Tensor

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import Json
from fairseq_lasformer.checkpoints.loading import check_weights, unpickled

SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"
TOKENIZER_CONFIG = "tokenizer_config.json"
ADAPTERS = "adapter_config.json"


class Folder:
    """A model's folder.

    Attributes:
        config: content of ``config.json``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._weights: dict[str, Tensor] | None = None
        if not path.is_dir():
            raise InputError(f"{path}: no such folder; download the model first: hf download {path} --local-dir FOLDER")
        if (path / ADAPTERS).is_file() and not (path / "config.json").is_file():
            raise InputError(f"{path}: contains only adapters; merge them into their model, and import that")
        self.config: Json = self.json("config.json")
        if not isinstance(self.config, dict) or not isinstance(self.config.get("model_type"), str):
            raise InputError(f"{path / 'config.json'}: does not say what kind of model it is (model_type)")

    def json(self, name: str) -> Any:
        """Return the content of one of the folder's JSON files."""
        path = self.file(name)
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as e:
            raise InputError(f"{path}: not a JSON file ({e})") from e

    def optional(self, name: str) -> Json:
        """Return the content of a JSON file with named entries; empty if the file does not exist."""
        values = self.json(name) if (self.path / name).is_file() else {}
        if not isinstance(values, dict):
            raise InputError(f"{self.path / name}: expected named entries")
        return values

    def pieces(self, name: str) -> list[str]:
        """Return the pieces of a sentencepiece model, by row, including the unknown one and the control symbols."""
        from sentencepiece import SentencePieceProcessor

        try:
            model = SentencePieceProcessor(model_file=str(self.file(name)))
        except (RuntimeError, OSError) as e:
            raise InputError(f"{self.path / name}: not a sentencepiece model") from e
        return [model.id_to_piece(i) for i in range(len(model))]

    def vocabulary(self, name: str) -> dict[str, int]:
        """Return the words in a JSON file, and their rows."""
        words = self.json(name)
        if not isinstance(words, dict) or any(isinstance(r, bool) or not isinstance(r, int) for r in words.values()):
            raise InputError(f"{self.path / name}: expected words and their numbers")
        return words

    def file(self, name: str) -> Path:
        """Return the path of one of the folder's files."""
        path = self.path / name
        if not path.is_file():
            raise InputError(f"{path}: not found; expected a model's folder as Hugging Face's library writes it")
        return path

    def number(self, name: str, default: int | None = None) -> int:
        """Return a setting that is a non-negative number."""
        value = self.config.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
            raise InputError(f"{self.path / 'config.json'}: {name}: expected a number, not {value!r}")
        return value

    def weights(self) -> dict[str, Tensor]:
        """Return the weights in float32, from ``model.safetensors``, ``pytorch_model.bin``, or the parts of either."""
        weights, self._weights = self._weights, None
        return self._read() if weights is None else weights

    def shapes(self) -> dict[str, Size]:
        """Return the shapes of the weights, which are kept for the next call of :meth:`weights`."""
        if self._weights is None:
            self._weights = self._read()
        return {name: weight.shape for name, weight in self._weights.items()}

    def _read(self) -> dict[str, Tensor]:
        for name in (SAFE, PICKLED):
            if (self.path / name).is_file():
                return _read(self.path / name)
            index = f"{name}.index.json"
            if (self.path / index).is_file():
                named = self.optional(index).get("weight_map")
                if not isinstance(named, dict) or not all(isinstance(part, str) for part in named.values()):
                    raise InputError(f"{self.path / index}: expected names of weights and the files that hold them")
                parts = sorted(set(named.values()))
                if any(Path(part).name != part for part in parts):
                    raise InputError(f"{self.path / index}: names parts outside the folder")
                return {k: v for part in parts for k, v in _read(self.file(part)).items()}
        raise InputError(f"{self.path}: contains no weights ({SAFE} or {PICKLED})")


def _read(path: Path) -> dict[str, Tensor]:
    """Return the weights in a file, in float32."""
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            tensors: Any = load_file(path)
        except (SafetensorError, OSError, ValueError, KeyError) as e:
            raise InputError(f"{path}: damaged ({str(e).splitlines()[0]})") from e
    else:
        tensors = unpickled(path)
    if not isinstance(tensors, dict):
        raise InputError(f"{path}: contains more than weights")
    check_weights(tensors, path)
    return {name: weight.float() if weight.is_floating_point() else weight for name, weight in tensors.items()}
