"""Signs of wrong translations, and their counts."""

from __future__ import annotations

import pytest

from fairseq_lasformer.evaluation.doubts import Facts, Pair, doubts, facts, lost_numbers, table

USUAL = [Pair(f"a line of an ordinary length {i}", f"eine Zeile der üblichen Länge, Nummer {i}") for i in range(12)]
LONG = "a sentence that has a good many words, so that its length says something about it"


@pytest.mark.parametrize(
    "pair, reasons",
    [
        (Pair(LONG, "ein Satz mit einer ganzen Reihe von Wörtern, so dass seine Länge etwas besagt"), ()),
        (Pair(LONG, "kurz"), ("far",)),
        (Pair("short", f"{LONG} {LONG}"), ("far",)),
        (Pair("yes", "selbstverständlich"), ()),  # too short to judge
        (Pair("a b", "und so und so und so und so"), ("loops",)),
        (Pair("no no no no", "nein nein nein nein"), ()),  # its source does the same
        (Pair("a", ""), ("empty",)),
        (Pair("  ", ""), ()),
        (Pair("a", "b", flawed=True), ("flawed",)),
        (Pair("a", "b", repaired=True), ()),
    ],
)
def test_signs(pair, reasons):
    assert doubts([*USUAL, pair])[-1] == reasons
    assert not any(doubts([*USUAL, pair])[:-1])


def test_the_usual_ratio_is_that_of_the_unit():
    """If all translations in a unit are four times as long, only one that is not is far from the usual ratio."""
    unit = [Pair(f"{LONG} {i}", f"{LONG} " * 4) for i in range(12)]
    assert not any(doubts(unit))
    assert doubts([*unit, Pair(LONG, LONG)])[-1] == ("far",)
    assert not any(doubts([*unit[:3], Pair(LONG, LONG)]))  # too few to judge
    alone = [doubts([Pair("w" * n, "x" * m)])[0] for n, m in ((99, 1), (100, 10), (100, 9), (12_000, 60))]
    assert alone == [(), (), ("far",), ("far",)]  # less than a tenth, whatever is usual


def test_counts_add_up():
    pairs = [*USUAL, Pair(LONG, "kurz"), Pair("x", "kurz", repaired=True), Pair("y", "", flawed=True), Pair("z", "z")]
    found = facts(pairs, doubts(pairs), 1.5)
    assert found._replace(source_characters=0, characters=0) == Facts(
        lines=16, repaired=1, flawed=1, loops=0, empty=1, far=1, doubtful=2, duplicates=2, seconds=1.5
    )
    assert found.source_characters == sum(len(pair.source) for pair in pairs)
    one, two = (facts(half, doubts(half), seconds) for half, seconds in ((pairs[:5], 1.0), (pairs[5:], 2.0)))
    rows = [line.split("\t") for line in table([("1", one), ("two\tparts", two)]).splitlines()]
    names = rows[0]
    assert [row[0] for row in rows] == ["unit", "1", "two parts", "all"] and {len(row) for row in rows} == {15}
    for name in ("lines", "repaired", "empty", "characters"):
        column = [row[names.index(name)] for row in rows[1:]]
        assert int(column[2]) == int(column[0]) + int(column[1]) == getattr(one, name) + getattr(two, name)
    assert float(rows[3][names.index("seconds")]) == 3.0
    assert float(rows[1][-1]) == pytest.approx(one.characters / one.source_characters, abs=1e-3)
    assert table([]).count("\n") == 2


@pytest.mark.parametrize(
    ("source", "translation", "lost"),
    [
        ("On 26 May 2026, 1,234.50 euros", "Am 26. Mai 2026: 1.234,50 Euro", []),
        ("On 26 May 2026", "Am 25. Mai 2026", ["26"]),
        ("12 and 12", "12", ["12"]),
        ("page 7 of 9", "Seite sieben von neun", []),  # short numbers may become words
        ("12\u202f500 km, 3'000 m", "12500 km, 3000 m", []),
        ("see 10.", "siehe 10", []),
        ("no number", "12", []),
    ],
)
def test_numbers_are_compared_by_their_digits(source, translation, lost):
    assert lost_numbers(Pair(source, translation)) == lost
    assert facts([Pair(source, translation)], [()]).numbers == bool(lost)
