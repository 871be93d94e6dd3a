"""Language tokens, which tell a multilingual model what it reads and writes."""

import difflib
from collections.abc import Mapping
from typing import Any

from fairseq_lasformer.apps.models.huggingface.folder import TOKENIZER_CONFIG, Folder
from fairseq_lasformer.base.errors import InputError


def added_tokens(folder: Folder, first: int) -> dict[str, int]:
    """Return the tokens that are not in the subword model, and their rows.

    Args:
        first: row of the first, if the folder gives only their order.
    """
    tokens: dict[Any, Any] = dict(folder.optional("added_tokens.json"))
    settings = folder.optional(TOKENIZER_CONFIG)
    numbered = settings.get("added_tokens_decoder")
    for row, item in numbered.items() if isinstance(numbered, dict) else ():
        tokens[_content(item)] = int(row) if str(row).isdecimal() else None
    named = folder.optional("tokenizer.json").get("added_tokens")
    for item in named if isinstance(named, list) else ():
        tokens[_content(item)] = item.get("id") if isinstance(item, dict) else None
    listed = folder.optional("special_tokens_map.json").get("additional_special_tokens")
    listed = listed or settings.get("additional_special_tokens") or settings.get("extra_special_tokens")
    for number, item in enumerate(listed if isinstance(listed, list) else ()):
        tokens.setdefault(_content(item), first + number)
    if any(not isinstance(t, str) or isinstance(r, bool) or not isinstance(r, int) for t, r in tokens.items()):
        raise InputError(f"{folder.path}: the tokens added by its tokenizer are damaged")
    return tokens


def _content(token: Any) -> Any:
    """Return the text of a token, which is given alone or with its matching options."""
    return token.get("content") if isinstance(token, dict) else token


def tag_of(folder: Folder, language: str, tokens: Mapping[str, int]) -> str:
    """Return the token of a language, which may be given as the model names it, or without script or country."""
    names = {token: token.strip("_<>") for token in tokens}
    exact = [token for token, name in names.items() if language in (token, name)]
    candidates = exact or [token for token, name in names.items() if name.split("_")[0] == language]
    if len(candidates) == 1:
        return candidates[0]
    close = candidates or difflib.get_close_matches(language, names.values(), 5, 0.4)
    hint = f"; is one of {', '.join(close)} meant?" if close else ""
    raise InputError(f"{folder.path}: has no language {language}{hint}")


_M2M100 = """
af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy id ig
ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so
sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu
"""
_WMT21 = "en ha is ja cs ru zh de"
_CODES = {"m2m100": _M2M100.split(), "wmt21": _WMT21.split()}


def m2m_tokens(folder: Folder, first: int) -> dict[str, int]:
    """Return the tokens of M2M-100's languages; ``language_codes`` in the tokenizer's settings gives their rows.

    Args:
        first: row of the first.
    """
    kind = str(folder.optional(TOKENIZER_CONFIG).get("language_codes", "m2m100"))
    if kind not in _CODES:
        raise InputError(f"{folder.path / TOKENIZER_CONFIG}: language_codes {kind}: expected {' or '.join(_CODES)}")
    return {f"__{code}__": first + i for i, code in enumerate(_CODES[kind])}


def own_languages(folder: Folder) -> tuple[str | None, str | None]:
    """Return the languages of a bilingual model; None where it does not say."""
    settings = folder.optional(TOKENIZER_CONFIG)
    langs = folder.config.get("langs") or settings.get("langs")
    if isinstance(langs, list) and len(langs) == 2:
        named = tuple(langs)
    else:
        named = settings.get("source_lang"), settings.get("target_lang")
    source, target = (name if isinstance(name, str) and name else None for name in named)
    return source, target
