"""Parts of a text that are not language: addresses, file names, placeholders of programs, messages of ICU.

They are kept as they are, in every format. ``{{ name }}``, ``${name}``, ``{0}``, ``%s``, ``%(name)s``, ``%1$s``,
``%name%``, ``%Y-%m-%d``, ``$HOME``, ``<0/>``, ``<?php … ?>``, ``<% … %>``, ``{# … #}``, ``@if (…)``, code between
backticks, formulas; ``https://example.org``, ``www.…``, ``anna@example.org``, ``127.0.0.1:80``, ``/usr/bin``,
``report.pdf``, ``.pdf``, ``--option``, ``-o``, ``@name``, ``#tag``, ``v1.2.3``; see also :mod:`text.icu`.
"""

import re
from typing import NamedTuple

from fairseq_lasformer.text import icu

MARKUP = "\ufffc"
"""Stand-in for markup in a text whose spans are sought; of all spans, only messages of ICU may contain it."""

N = r"\d{1,4}"  # every repetition is bounded: texts are untrusted
WIDTH = rf"(?:\*(?:{N}\$)?|{N})?(?:\.(?:\*(?:{N}\$)?|{N})?)?"
CONVERSION = r"(?:hh|h|ll|l|j|z|t|L|q|w\d+|wf\d+)?(?:[diouxXeEfFgGaAcCsSpnmbB]|<PRI[a-zA-Z]+\d*>)"

_M = r"A-Za-z0-9\u00c0-\u024f\u0370-\u052f"
_L = f"{_M}_"
"""Letters and digits of scripts that write spaces, within a class; in others, an address may follow a word directly."""

_TEMPLATES = (
    r"<\?(?:php\b|=)[\s\S]{0,1000}?\?>|<%[\s\S]{0,1000}?%>|\{#[^\n]{0,1000}?#\}|\{!![^\n]{0,400}?!!\}|\[%[^\n]{0,400}?%\]"
    r"|\{\{\{[^{}\n]{0,200}\}\}\}|\{\{[^{}\n]{0,200}\}\}|\{%[^\n]{0,400}?%\}|[$#%]\{[^{}\n]{0,200}\}"
    r"|\{(?![+=~>-]{2})[^{}\s]{0,80}\}|\{[ \t][\w.$]{1,80}[ \t]\}"
)

_CODE_SPANS = r"(?<![\w`])(?:``(?:(?!'')[^`\n\ufffc]){1,200}``|`[^`'\n\ufffc]{1,200}`)(?![\w`])"
_FORMULAS = (
    r"\\\((?:(?!\\\))[^\ufffc]){1,1000}\\\)|(?<!\$)\$\$(?![\s$])[^$\ufffc]{1,1000}(?<!\s)\$\$(?!\$)"
    r"|\\\[(?=[^\ufffc]{0,400}[=^_\\+])(?:(?!\\\])[^\ufffc]){1,1000}\\\]"
)

# In any text: no space as a flag ("100% of"), and nothing that continues as a word ("50%off").
_DIRECTIVES = (
    rf"(?<![{_L}%])%\([\w.-]{{1,80}}\)[-+#0]{{0,6}}\d{{0,4}}(?:\.\d{{1,4}})?[a-zA-Z]"
    rf"|(?<![{_M}%])%(?:{N}\$)?[-+#0']{{0,6}}{WIDTH}{CONVERSION}(?![{_M}])"
    rf"|(?<![{_M}%])%[-_^#0EO]?[a-zA-Z](?![{_M}])(?<=[YHMIyjkeDFRTUVWwZzPhgGlr])|(?<![{_L}$])\$[A-Z_][A-Z0-9_]{{1,40}}(?![{_L}])"
    rf"|(?<![{_L}%])%(?:{N}\$)?@(?![{_L}])|(?<![{_L}%])%%(?![{_L}])"
    rf"|(?<![{_L}%])%[A-Za-z_][\w.-]{{0,80}}%(?![{_L}])|(?<![{_L}%])%L?\d{{1,2}}(?![{_L}])"
    r"|</?\d{1,4}/?>|\$t\([\w.:-]{1,80}\)|(?<![\w:\\])\\[a-zA-Z]{2,20}(?:\{[^{}\n\ufffc]{0,80}\})+"
    r"|(?<![\w:]):(?:count|name|attribute|value|values|min|max|size|seconds|minutes|other|date|input|total)(?![\w:])"
    r"|&(?:[a-zA-Z][a-zA-Z0-9]{1,20}|#\d{1,6}|#[xX][0-9a-fA-F]{1,6});|(?<![\w>])</?[a-zA-Z][\w-]{0,20}(?:\s[^<>\n\ufffc]{0,200})?/?>(?![\w<])"
)

PLACEHOLDERS = f"{_TEMPLATES}|{_DIRECTIVES}"
"""Pattern of what a program fills in, or runs."""

_BLADE = (
    "if elseif else endif unless endunless isset endisset empty endempty auth endauth guest endguest env endenv for "
    "endfor foreach endforeach forelse endforelse while endwhile switch case break default endswitch continue "
    "section endsection yield extends include includeIf includeWhen csrf method lang json php endphp push endpush "
    "prepend endprepend stack component endcomponent slot endslot verbatim endverbatim error enderror props once "
    "endonce production endproduction show stop parent each can endcan cannot endcannot choice inject"
).replace(" ", "|")
_ARGUMENTS = r"\((?:[^()\n]|\((?:[^()\n]|\([^()\n]{0,200}\)){0,200}\)){0,400}\)"
_DIRECTIVE = rf"(?<![{_L}@.])@(?:(?:{_BLADE})[ \t]?{_ARGUMENTS}|[A-Za-z]\w{{0,40}}(?=\([$'\"\[\d!)]){_ARGUMENTS})"

# neither space nor brackets nor quotation marks, and nothing of scripts that write no space after an address
_SPACELESS = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u9fff\uac00-\ud7af\uff00-\uffef"
_IN_ADDRESS = rf"[^\s<>\"“”„«»‹›`{{}}|\\^\ufffc{_SPACELESS}]"
_SCHEMES = (
    "https?|ftps?|sftp|ssh|git|file|wss?|svn|s3|gs|ldaps?|irc|rtsp|rtmp|smb|nfs|jdbc:[a-z]{1,20}|[a-z][a-z0-9+-]{1,20}"
)
_DOMAINS = "com|org|net|edu|gov|mil|info|biz|io|dev|app|int"
_COUNTRIES = (
    "de|uk|fr|it|es|pt|nl|be|ch|at|pl|cz|sk|hu|ro|bg|gr|se|no|dk|fi|ee|lv|lt|ie|ru|ua|by|tr|il|in|cn|jp|kr|tw|hk|vn|"
    "th|id|my|sg|au|nz|ca|us|mx|br|ar|cl|za|eu|is|lu|si|hr|rs"
)
_SHORTENERS = "ly|co|gl|me|tv|gg|to|im|cc|ws|ai"
_MAIL = r"[A-Za-z0-9_.+%-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,6}[A-Za-z]{2,24}"
_LABEL = r"(?:[a-z0-9][a-z0-9-]{0,62}\.)"
_ADDRESSES = (
    rf"(?<![A-Za-z0-9])(?i:{_SCHEMES})://(?:[^\s<>\"/?#:.{{}}]{{1,63}}\.){{0,5}}{_IN_ADDRESS}{{1,2000}}"
    rf"|(?<![A-Za-z0-9])(?i:mailto:(?=[\w.+-]+@)|(?:tel|sms|callto):(?=[+\d(])|sips?:(?=[\w.+-]+@)|data:(?=\w+/)|skype:(?=\w)"
    rf"|magnet:(?=\?)|urn:(?=\w+:)|doi:(?=10\.)|geo:(?=-?\d)){_IN_ADDRESS}{{1,2000}}"
    rf"|(?<![{_L}.@/])(?i:www)\.{_IN_ADDRESS}{{1,2000}}"
    rf"|(?<![A-Za-z0-9_.+%-]){_MAIL}:[{_L}./~-]{{1,200}}|(?<![A-Za-z0-9_.+%-]){_MAIL}(?![A-Za-z0-9_@])"
    rf"|(?<![{_L}.@/\\-]){_LABEL}{{1,5}}(?:{_DOMAINS})(?:/{_IN_ADDRESS}{{0,2000}})?(?![{_L}@])"
    rf"|(?<![{_L}.@/\\-]){_LABEL}{{1,5}}(?:{_COUNTRIES}|{_SHORTENERS})/{_IN_ADDRESS}{{1,2000}}"
    rf"|(?<![{_L}.@/\\-]){_LABEL}{{2,5}}(?:{_COUNTRIES})(?![{_L}@]|\.[{_L}])"
    rf"|(?<![{_L}.@/\\-])localhost(?::\d{{2,5}}(?:/{_IN_ADDRESS}{{0,400}})?|/{_IN_ADDRESS}{{1,400}})"
)

_ENDINGS = (
    "7z aac aif apk avi avif bak bash bat bib bin bmp bz2 cc cfg class cmd conf cpp crt cs css csv dat db deb dll "
    "dmg doc docx dot dtd ejs env eot epub erb exe flac flv gif gradle gz hpp hs html htm ico ics idx img ini "
    "ipynb iso jar java jpeg jpg js json jsonl jsx key kt less lock log lua m4a md mdx mkv mov mp3 mp4 mpeg mpg "
    "msi odp ods odt ogg onnx otf pdf pem php pkl pl plist png po pot ppt pptx ps ps1 psd pt py pyc pyi pyx qml "
    "rar rb rpm rs rst rtf sass scala scss sh sql sqlite srt svg swift tar tex tgz tiff tif tmx toml ts tsv tsx "
    "ttf txt vb vim vtt vue war wasm wav webm webp whl woff woff2 wmv xhtml xlf xliff xls xlsx xml xsd xsl xz "
    "yaml yml zip zst"
)
_ENDING = f"(?:{'|'.join(sorted((*_ENDINGS.split(), *_ENDINGS.upper().split()), key=len, reverse=True))})"
_NAME = rf"[{_L}.@+~%=-]"
_LONE_ENDINGS = "sub|sup|ass|ssa|smi|stl|mks|mka|ttml|dfxp|ods|odg|map|cgi|aspx?|cer|pub|bz|lz4|appimage|nfo|cue|m3u8?"
_JOINING = (
    "a|and|as|at|but|for|from|he|her|his|i|I|if|in|is|it|my|no|nor|not|of|on|or|she|so|that|the|then|there|they|this|to|"
    "was|we|what|when|where|which|who|with|yet|you"
)
"""Words after a dash of prose, ``left --and never came``, rather than names of options."""

_HIDDEN_FILES = "git[a-z]{2,20}|bash[a-z_]{2,12}|env|npmrc|htaccess|ssh|profile|vimrc|zshrc|editorconfig|dockerignore"
_FILES = (
    rf"(?<![{_L}:/.\\])(?:~|\.{{1,2}})?(?:/{_NAME}{{1,120}}){{2,40}}/?|(?<![{_L}:/.\\])(?:~|\.{{1,2}})/{_NAME}{{1,120}}/?"
    rf"|(?<![{_L}:/.\\<\xad-])/[A-Za-z][{_L}.+~%-]{{2,120}}/?"
    rf"|(?<![{_L}\\])(?:[A-Za-z]:\\|\\\\(?=\w)|%\w{{1,40}}%\\)[^\s<>\"|?*\ufffc{_SPACELESS}]{{1,400}}"
    rf"|(?<![{_L}/.\\])(?:{_NAME}{{1,80}}/){{1,20}}\.?(?:[{_L}@+~%=-]{{1,80}}\.){{1,4}}(?:{_ENDING}|[chr])(?![{_L}])"
    rf"|(?<![{_L}/.\\])(?:{_NAME}{{1,80}}/){{2,20}}(?![{_L}])"
    rf"|(?<![{_L}/.\\])\.?(?:[{_L}+~-]{{1,80}}\.){{1,4}}{_ENDING}(?![{_L}/])"
    rf"|(?<![{_L}/.\\])[a-z0-9_-]{{3,80}}\.[chr](?![{_L}/])"
    rf"|(?<![{_L}/.\\])\.(?:{_HIDDEN_FILES}|{_ENDING}|{_LONE_ENDINGS})(?![{_L}])"
    rf"|(?<![^\s(\[{{'`=|])--(?!(?:{_JOINING})\b(?!-))[A-Za-z][{_L}-]{{1,60}}(?:=[{_L}./:-]{{1,80}})?"
    rf"|(?<![^\s(\[{{'`=|])-(?![AIOYE]\s+[a-z])[A-Za-z](?![{_L}'’-])"
    rf"|(?<![{_L}*])\*(?:\.\w{{1,8}}){{1,2}}(?![{_L}*])"
)

_NAMES = (
    rf"(?<![{_L}@/.&#])@[A-Za-z0-9_][A-Za-z0-9_-]{{0,40}}(?:[./][A-Za-z0-9_-]{{1,40}}){{0,4}}(?![{_L}@])"
    rf"|(?<![{_L}#&/])#(?=\w{{0,60}}[^\W\d_])[{_L}-]{{1,60}}(?:/[{_L}-]{{1,60}}){{0,4}}(?![{_L}#;])"
)
_VERSIONS = (
    rf"(?<![{_L}.,])[vV]\d{{1,6}}(?:\.\d{{1,6}}){{1,5}}(?:[-+.][A-Za-z0-9]{{1,20}}){{0,4}}(?![{_L}])"
    rf"|(?<![{_L}.,:])\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?::\d{{1,5}}|/\d{{1,2}})(?![{_L}.])"
    rf"|(?<![{_L}.,])(?!\d{{1,2}}\.\d{{1,2}}\.\d{{2}}(?:\d\d)?(?![\d.]))(?!\d{{1,3}}(?:\.\d{{3}}){{2,6}}(?!\d))"
    rf"\d{{1,6}}(?:\.\d{{1,6}}){{2,5}}(?:[-+.][A-Za-z0-9]{{1,20}}){{0,4}}(?![{_L}])"
)

_SPANS = re.compile(
    f"(?P<placeholder>{_TEMPLATES}|{_CODE_SPANS}|{_FORMULAS}|{_DIRECTIVE})|(?P<address>{_ADDRESSES})|(?P<file>{_FILES})|(?P<name>{_NAMES})"
    f"|(?P<version>{_VERSIONS})|(?P<directive>{_DIRECTIVES})"
)
_SIGN = re.compile(
    r"[{}%@#/\\$`]|(?<![\w-])--?(?=[A-Za-z])|<(?=[?%\d/a-zA-Z])|&(?=[#a-zA-Z])|:(?=(?:count|name|attribute|value|m[ai][nx]|size|seconds|minutes|other|date|input|total)\b)|(?<=\w)\.(?=\w)|(?<![\w.])\.(?=[a-z])|\*\.|\[%"
    r"|:(?<=\b(?:tel|sms|urn|doi|geo|sip):)(?=[^\s])|:(?<=\bdata:)(?=\w)|:(?<=\bskype:)(?=\w)|:(?<=\bmagnet:)(?=\?)"
    r"|:(?<=\bcallto:)(?=[^\s])|:(?<=localhost:)(?=\d)"
)
"""Characters of which each span has one, at its start or after it; most text has none."""

_CODE = re.compile(f"(?P<placeholder>{_TEMPLATES})|(?P<directive>{_DIRECTIVES})")
_LONGEST = 120
"""Number of characters of a span before the first of them."""

ENDLESS = 500
"""Characters from which a word in Latin letters is no word of a language, but data."""

_DATA = re.compile(rf"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/=_-]{{{ENDLESS},}}")

_SPACES = " \n\t\xa0\ufffc"
_EDGE = re.compile(rf"(?<![{_L}])\S|[^\w\s]")
"""Places where a span may begin."""


class Span(NamedTuple):
    """A part of a text that is not language."""

    # start, end: its place
    start: int
    end: int
    kind: str  # `placeholder`, `directive`, `address`, `file`, `name`, `version` or `icu`
    message: icu.Message | None = None  # for `icu`, its parts


def spans(text: str) -> list[Span]:
    """Find the parts of a text that are not language, in order; :data:`MARKUP` in the text stands for markup."""
    data = [Span(*run.span(), "name") for run in _DATA.finditer(text)] if len(text) >= ENDLESS else []
    shown = _spans(text)
    if not data:
        return shown
    apart = [span for span in shown if all(span.end <= one.start or one.end <= span.start for one in data)]
    return sorted((*apart, *data), key=lambda span: span.start)


def _spans(text: str) -> list[Span]:
    """Find the parts that a sign shows."""
    sign = _SIGN.search(text)
    if sign is None:
        return []
    messages = icu.messages(text) if "{" in text else []
    spans: list[Span] = []
    position, following = 0, 0  # how far the text has been searched, and the next message
    while sign is not None:
        if following < len(messages) and messages[following].start <= sign.start():
            message = messages[following]
            spans.append(Span(message.start, message.end, "icu", message))
            position, following = message.end, following + 1
        elif span := _around(text, sign.start(), position):
            if following < len(messages) and span.end > messages[following].start:
                position = messages[following].start
            else:
                spans.append(span)
                position = span.end
        else:
            position = sign.start() + 1
        sign = _SIGN.search(text, position)
    return _merged(text, spans)


def _merged(text: str, spans: list[Span]) -> list[Span]:
    """Return spans, of which those that only punctuation separates are one, with a file ending: ``{name}_{id}.txt``."""
    merged: list[Span] = []
    for span in spans:
        if (
            span.message is None
            and merged
            and merged[-1].message is None
            and _GLUE.fullmatch(text, merged[-1].end, span.start)
        ):
            merged[-1] = merged[-1]._replace(end=span.end)
        else:
            merged.append(span)
    merged, parts = [], merged
    for span in parts:
        if span.kind in ("placeholder", "directive"):
            start, end = whole_name(text, span.start, span.end, merged[-1].end if merged else 0)
            span = span._replace(start=start, end=end)
        if merged and span.start < merged[-1].end and span.message is None:
            merged[-1] = merged[-1]._replace(end=max(merged[-1].end, span.end))
        else:
            merged.append(span)
    for i, span in enumerate(merged):
        if (
            span.kind == "placeholder"
            and text[span.end : span.end + 1] == "."
            and (ending := _FILE_ENDING.match(text, span.end))
        ):
            merged[i] = span._replace(end=ending.end())
    return merged


def whole_name(text: str, start: int, end: int, least: int = 0) -> tuple[int, int]:
    """Return the place of the name that a placeholder is part of, ``page_%s_copy``, or its own."""
    before = _NAME_BEFORE.search(text, max(least, start - 60), start)
    after = _NAME_AFTER.match(text, end)
    return before.start() if before else start, after.end() if after else end


def _around(text: str, sign: int, least: int) -> Span | None:
    """Return the span that a sign is in; it begins there, or where a word does before it."""
    code = _CODE.match(text, sign) if text[sign] in "{%<$[" else None
    path = code is not None and text[code.end() : code.end() + 1] == "\\"  # %APPDATA%\tool
    if code is not None and MARKUP not in code[0] and not path:
        return Span(sign, code.end(), code.lastgroup or "")
    begin = max(least, sign - _LONGEST)
    start = max(begin, *(text.rfind(space, begin, sign) + 1 for space in _SPACES))
    while start <= sign:
        match = _SPANS.match(text, start)
        if match is not None:
            kind, end = match.lastgroup or "", match.end()
            if kind in ("address", "file"):
                end = start + len(_without_punctuation(match[0]))
            if end > sign and MARKUP not in text[start:end]:
                return Span(start, end, kind)
        edge = _EDGE.search(text, start + 1, sign + 1)
        if edge is None:
            return None
        start = edge.start()
    return None


def has_language(text: str) -> bool:
    """Return whether a text has a letter outside of such parts."""
    if not has_letter(text):
        return False
    position = 0
    for span in spans(text):
        inner = () if span.message is None else span.message.texts
        if has_letter(text[position : span.start]) or any(has_language(text[a:b]) for a, b, _ in inner):
            return True
        position = span.end
    return has_letter(text[position:])


def has_letter(text: str) -> bool:
    """Return whether a text has a letter; those that are emoji (U+2139 with U+FE0F) do not count."""
    if text.isascii():
        return not text.isspace() and any(map(str.isalpha, text))
    return any(map(str.isalpha, re.sub(".\ufe0f", "", text) if "\ufe0f" in text else text))


_NAME_BEFORE = re.compile(r"[^\W_][\w.-]{0,58}_\Z|_\Z")
_NAME_AFTER = re.compile(r"_(?:[\w.-]{0,58}[^\W_])?")
_GLUE = re.compile(r"[^\s\w\ufffc]{0,2}|_{1,3}")
_FILE_ENDING = re.compile(rf"\.{_ENDING}(?!\w)")
_OPENING = {")": "(", "]": "["}


def _without_punctuation(address: str) -> str:
    """Return an address without the punctuation of the sentence around it."""
    while address:
        last = address[-1]
        ends = last in ".,;:!?…'’*" or (last in "_-~" and not address[-2:-1].isalnum())
        if not ends and (last not in _OPENING or address.count(last) <= address.count(_OPENING[last])):
            break
        address = address[:-1]
    return address
