"""Links of Markdown to headings of the same page, whose ids follow from their words."""

import re

_HEADING = re.compile(r"#{1,6}[ \t]+(.*)")
_UNDERLINE = re.compile(r"(?:-{2,}|={2,})[ \t]*\Z")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_LINK = re.compile(r"(\]\(#|\]:[ \t]+#)([^\s)]+)")


def finish(original: str, translated: str) -> str:
    """Return a translated page in which links to headings name them as they are now.

    Headings with an id of their own (``{#id}``) keep it.
    """
    if "#" not in original or not _LINK.search(original):
        return translated
    old, new = _ids(original), _ids(translated)
    if len(old) != len(new):
        return translated
    changed = {a: b for a, b in zip(old, new) if a != b}
    return (
        _LINK.sub(lambda link: link[1] + changed.get(link[2].lower(), link[2]), translated) if changed else translated
    )


def _ids(text: str) -> list[str]:
    """Return the ids of all headings, as GitHub and most generators of sites make them."""
    ids: list[str] = []
    seen: dict[str, int] = {}
    fence = ""
    lines = [*text.splitlines(), ""]
    for line, following in zip(lines, lines[1:]):
        if mark := _FENCE.match(line):
            fence = "" if fence and mark[1].startswith(fence) else fence or mark[1]
        heading = _HEADING.match(line)
        underlined = heading is None and line.strip() and _UNDERLINE.match(following) and not _UNDERLINE.match(line)
        if fence or not (heading or underlined):
            continue
        words = heading[1].rstrip().rstrip("#") if heading else line
        words = re.sub(r"!?\[([^\[\]]{0,1000})\]\([^()]{0,1000}\)", r"\1", words)
        given = re.search(r"\{#([\w-]+)\}\s*\Z", words)
        name = given[1] if given else re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", words.strip().lower()))
        seen[name] = seen.get(name, -1) + 1
        ids.append(f"{name}-{seen[name]}" if seen[name] and not given else name)
    return ids
