#!/usr/bin/env python3
"""Generator of the demo corpus: English-German documents in which earlier text determines the right translation.

    python data/demo/generate.py OUT [--documents N] [--seed S]

It writes OUT/{train,valid,test}.{en,de} (raw form) and OUT/{train,valid,test}.probe.jsonl, which contains one line for
each context-dependent word:

    {"document", "sentence", "word", "phenomenon", "right", "wrong", "distance", "first"}

document and sentence are counted from 0; word is the index among the words and punctuation marks of the target
sentence; distance is the number of source words and punctuation marks between the word and what determines it (0: in
the same sentence); first is true if no earlier word in the translation of the document already reveals the decision.

(a) pronoun: it -> er, sie, es, by the gender of the most recently introduced object.
(b) ambiguity: bank -> Ufer, Bank, by the place the text comes from.
(c) tense: put, cut, hit, … -> present or past, by the tense of the surrounding sentences.
(d) address: you -> du, Sie, by the name of the person greeted.

No sentence occurs in more than one split: a hash of the sentence decides where it may be used.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import zlib
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
import lexicon as lex

SPLITS = ("train", "valid", "test")
PHENOMENA = ("pronoun", "ambiguity", "tense", "address")


class Sentence(NamedTuple):
    """One sentence.

    Attributes:
        source, target: tokens of both sides.
        cue: the phenomenon that the sentence settles from here on, and the source index of the deciding word.
        query: the phenomenon that the sentence tests, the source and target indices of the tested word, and its wrong
            translations.
    """

    source: list[str]
    target: list[str]
    cue: tuple[str, int] | None = None
    query: tuple[str, int, int, list[str]] | None = None


class Writer:
    """Writer of random sentences.

    Args:
        rng: source of randomness.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def pick(self, entries):
        return self.rng.choice(entries)

    def person(self, case: int, adjective: bool = True) -> tuple[str, str]:
        """Return an English and a German noun phrase; case 1 is nominative, 2 accusative, 3 dative."""
        entry = self.pick(lex.PERSONS)
        article, noun = entry[case].split()
        if not adjective:
            return f"the {entry[0]}", f"{article} {noun}"
        en, stem = self.pick(lex.PERSON_ADJECTIVES)
        ending = "en" if case == 3 or article == "den" else "e"
        return f"the {en} {entry[0]}", f"{article} {stem}{ending} {noun}"

    def things(self) -> tuple[str, str]:
        (adj, stem), (noun, german) = self.pick(lex.THING_ADJECTIVES), self.pick(lex.THINGS)
        return f"the {adj} {noun}", f"die {stem}en {german}"

    def filler(self) -> Sentence:
        modal, adverb = self.pick(lex.MODALS), self.pick(lex.ADVERBS)
        who = self.person(1)
        if self.rng.random() < 0.3:
            whom = self.person(3)
            return sentence(
                f"{who[0]} {modal[0]} help {whom[0]} {adverb[0]} .",
                f"{who[1]} {modal[1]} {whom[1]} {adverb[1]} helfen .",
            )
        verb, what = self.pick(lex.VERBS), self.things()
        return sentence(
            f"{who[0]} {modal[0]} {verb[0]} {what[0]} {adverb[0]} .",
            f"{who[1]} {modal[1]} {adverb[1]} {what[1]} {verb[1]} .",
        )

    def cue(self, phenomenon: str, fact: str) -> Sentence:
        """Return a sentence that settles ``phenomenon`` as ``fact``; the deciding word is marked with *."""
        if phenomenon == "pronoun":
            thing, who, modal = self.pick(lex.OBJECTS[fact]), self.person(1), self.pick(lex.MODALS)
            if self.rng.random() < 0.5:
                en, de = f"tell the story of a *{thing[0]} .", f"die Geschichte {thing[3]} erzählen ."
            else:
                en, de = f"speak about a *{thing[0]} .", f"über {thing[2]} sprechen ."
            return sentence(f"{who[0]} {modal[0]} {en}", f"{who[1]} {modal[1]} {de}", cue=phenomenon)
        if phenomenon == "ambiguity":
            text, place, whom = self.pick(lex.TEXTS), self.pick(lex.PLACES[fact]), self.person(2)
            where = lex.REGIONS[fact]
            return sentence(
                f"this {text[0]} about {whom[0]} comes from the *{place[0]} {where[0]} .",
                f"{text[1]} über {whom[1]} kommt {place[1]} {where[1]} .",
                cue=phenomenon,
            )
        if phenomenon == "tense":
            adverb, verb = self.pick(lex.TENSE_ADVERBS[fact]), self.pick(lex.TENSE_VERBS)
            past = int(fact == "past")
            who, whom = self.person(1), self.person(2, adjective=False)
            first, *rest = adverb[0].split()
            start = " ".join([f"*{first}", *rest])
            return sentence(
                f"{start} {who[0]} {verb[past]} {whom[0]} .",
                f"{adverb[1]} {verb[2 + past]} {who[1]} {whom[1]} .",
                cue=phenomenon,
            )
        name, greeting, said = self.pick(lex.NAMES[fact]), self.pick(lex.GREETINGS), self.filler()
        en, de = (" ".join([side[0].lower(), *side[1:]]) for side in (said.source, said.target))
        first, *rest = name[0].split()
        return sentence(
            f"{greeting[0]} , {' '.join(['*' + first, *rest])} , {en}",
            f"{greeting[1]} , {name[1]} , {de}",
            cue=phenomenon,
        )

    def query(self, phenomenon: str, fact: str, here: bool) -> Sentence:
        """Return a sentence with a word whose translation depends on ``fact`` (marked with ?).

        Args:
            phenomenon: the phenomenon to test.
            fact: what the document has settled about it.
            here: whether the sentence itself also states the fact.
        """
        modal, adverb = self.pick(lex.MODALS), self.pick(lex.ADVERBS)
        cue = phenomenon if here else None
        if phenomenon == "pronoun":
            by, participle = self.person(3), self.pick(lex.PARTICIPLES)
            wrong = [g for g in lex.OBJECTS if g != fact]
            en = f"?it {modal[0]} be {participle[0]} by {by[0]} {adverb[0]} ."
            de = f"?{fact} {modal[1]} {adverb[1]} von {by[1]} {participle[1]} werden ."
            if here:
                thing = self.pick(lex.OBJECTS[fact])
                en, de = f"the *{thing[0]} must stay , for {en}", f"{thing[1]} muss bleiben , denn {de}"
            return sentence(en, de, cue, phenomenon, wrong)
        if phenomenon == "ambiguity":
            who, verb, noun = self.person(1), self.pick(lex.VERBS), self.pick(lex.AMBIGUOUS)
            right = 1 + int(fact == "town")
            article, german = noun[right].split()
            en = f"{who[0]} {modal[0]} {verb[0]} the ?{noun[0]} {adverb[0]} ."
            de = f"{who[1]} {modal[1]} {adverb[1]} {article} ?{german} {verb[1]} ."
            if here:
                place, where = self.pick(lex.PLACES[fact]), lex.REGIONS[fact]
                en = f"near the *{place[0]} {where[0]} {en}"
                de = f"{place[2]} {where[1]} {modal[1]} {who[1]} {adverb[1]} {article} ?{german} {verb[1]} ."
            return sentence(en, de, cue, phenomenon, [noun[3 - right].split()[1]])
        if phenomenon == "tense":
            (adj, stem), group, verb = (
                self.pick(lex.PERSON_ADJECTIVES),
                self.pick(lex.GROUPS),
                self.pick(lex.UNMARKED_VERBS),
            )
            what, right = self.things(), 1 + int(fact == "past")
            who = (f"the {adj} {group[0]}", f"die {stem}en {group[1]}")
            en = f"{who[0]} ?{verb[0]} {what[0]} {adverb[0]} ."
            de = f"{who[1]} ?{verb[right]} {adverb[1]} {what[1]} ."
            if here:
                when = self.pick(lex.TENSE_ADVERBS[fact])
                en, de = f"*{when[0]} {en}", f"{when[1]} ?{verb[right]} {who[1]} {adverb[1]} {what[1]} ."
            return sentence(en, de, cue, phenomenon, [verb[3 - right]])
        verb, what = self.pick(lex.VERBS), self.things()
        right = 2 + int(fact == "Sie")
        en = f"?you {modal[0]} {verb[0]} {what[0]} {adverb[0]} ."
        de = f"?{fact} {modal[right]} {adverb[1]} {what[1]} {verb[1]} ."
        if here:
            name = self.pick(lex.NAMES[fact])
            en, de = f"*{name[0]} , {en}", f"{name[1]} , {de}"
        return sentence(en, de, cue, phenomenon, ["du" if fact == "Sie" else "Sie"])


def sentence(
    en: str, de: str, cue: str | None = None, query: str | None = None, wrong: list[str] | None = None
) -> Sentence:
    """Return a sentence from marked text: * precedes the deciding word, ? the dependent word on both sides."""
    source, target = en.split(), de.split()
    at = {mark: [i for i, w in enumerate(source) if w[0] == mark and len(w) > 1] for mark in "*?"}
    asked = [i for i, w in enumerate(target) if w[0] == "?" and len(w) > 1]
    clean = [[w[1:] if w[0] in "*?" and len(w) > 1 else w for w in side] for side in (source, target)]
    for side in clean:
        side[0] = side[0][0].upper() + side[0][1:]
    wrong = [w[0].upper() + w[1:] if asked and asked[0] == 0 else w for w in wrong or []]
    return Sentence(
        *clean, cue=(cue, at["*"][0]) if cue else None, query=(query, at["?"][0], asked[0], wrong) if query else None
    )


def raw(tokens: list[str]) -> str:
    """Return running text: no space before punctuation."""
    return " ".join(tokens).replace(" ,", ",").replace(" .", ".")


def split_of(source: str) -> str:
    """Return the only split in which a sentence may occur."""
    return {0: "valid", 1: "test", 2: "test"}.get(zlib.crc32(source.encode()) % 20, "train")


def document(rng: random.Random, split: str, n_sentences: int) -> tuple[list[Sentence], list[dict]]:
    """Return one document and its probe entries (without the document number)."""
    writer = Writer(rng)

    def draw(make, *args) -> Sentence:
        while True:
            s = make(*args)
            if split_of(raw(s.source)) == split:
                return s

    n_active = 1 if n_sentences < 8 else rng.randint(1, 3) if n_sentences < 20 else rng.randint(2, 4)
    pending = rng.sample(PHENOMENA, n_active)
    facts = {
        "pronoun": rng.choice(list(lex.OBJECTS)),
        "ambiguity": rng.choice(list(lex.PLACES)),
        "tense": rng.choice(list(lex.TENSE_ADVERBS)),
        "address": rng.choice(list(lex.NAMES)),
    }
    # long documents repeat facts less often, so that some distances become long
    repeats = {p: rng.random() < (0.5 if n_sentences > 60 else 0.9) for p in PHENOMENA}
    decided: dict[str, int] = {}
    shown: set[str] = set()
    written: list[Sentence] = []
    probes: list[dict] = []
    position = 0
    while len(written) < n_sentences:
        last = len(written) == n_sentences - 1 and not probes
        p = rng.choice(list(decided)) if decided else ""
        roll = rng.random()
        if pending and (roll < 0.8 or not decided or len(written) + 2 >= n_sentences):
            phenomenon = pending.pop()
            s = draw(writer.cue, phenomenon, facts[phenomenon])
        elif p and (roll < 0.6 or last):
            s = draw(writer.query, p, facts[p], repeats[p] and rng.random() < 0.2)
        elif p and repeats[p] and roll < 0.85:
            if p == "pronoun" and rng.random() < 0.1:
                facts[p] = rng.choice(list(lex.OBJECTS))
                shown.discard(p)
            s = draw(writer.cue, p, facts[p])
        else:
            s = draw(writer.filler)
        if s.cue:
            decided[s.cue[0]] = position + s.cue[1]
        if s.query:
            name, at, word, wrong = s.query
            probes.append(
                {
                    "sentence": len(written),
                    "word": word,
                    "phenomenon": name,
                    "right": s.target[word],
                    "wrong": wrong,
                    "distance": 0 if s.cue else position + at - decided[name],
                    "first": name not in shown,
                }
            )
            shown.add(name)
        position += len(s.source)
        written.append(s)
    return written, probes


def length(rng: random.Random, index: int) -> int:
    """Draw the number of sentences of a document: 5 to 60, in every tenth 61 to 150; small numbers are more likely."""
    low, high = (61, 150) if index % 10 == 9 else (5, 60)
    return low + int((high - low + 1) * rng.random() ** 1.5)


def generate(out: Path, n_documents: int, seed: int) -> dict[str, int]:
    """Write the corpus and return the number of documents in each split."""
    held_out = max(2, n_documents // 25)
    counts = {"train": n_documents - held_out - held_out * 2, "valid": held_out, "test": held_out * 2}
    out.mkdir(parents=True, exist_ok=True)
    for number, split in enumerate(SPLITS):
        rng = random.Random(seed * 1000 + number)
        sides: tuple[list[str], list[str]] = ([], [])
        lines = []
        for d in range(counts[split]):
            written, probes = document(rng, split, length(rng, d))
            for side, tokens in zip(sides, ([s.source for s in written], [s.target for s in written])):
                side.append("".join(raw(t) + "\n" for t in tokens))
            lines += [json.dumps({"document": d} | probe, ensure_ascii=False) + "\n" for probe in probes]
        for language, side in zip(("en", "de"), sides):
            (out / f"{split}.{language}").write_text("\n".join(side), encoding="utf-8")
        (out / f"{split}.probe.jsonl").write_text("".join(lines), encoding="utf-8")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--documents", type=int, default=2000, help="in all three splits (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.documents < 10:
        sys.exit("error: --documents: at least 10 are needed for three splits")
    counts = generate(args.out, args.documents, args.seed)
    print(", ".join(f"{split}: {n} documents" for split, n in counts.items()))


if __name__ == "__main__":
    main()
