#!/usr/bin/env python3
"""Generator of the demo corpus with a fifth phenomenon: house terms, for which clients use different words.

    python data/demo/house_terms.py OUT [--documents N] [--clients C] [--test-clients T] [--seed S]

Every document belongs to a client, and every client to one of three houses. Some sentences name things for which German
has three words; each house has its own. Nothing in a document reveals the house before one of these words is used; only
the client's earlier documents do. The script writes

    OUT/client<c>.{en,de}            training documents of each client
    OUT/valid.{en,de}, valid.probe.jsonl
    OUT/test.{en,de}, test.probe.jsonl, test.clients.json     documents of clients without training documents
    OUT/memory<t>.{en,de}            earlier documents of each of these, in which all terms occur

The probes are those of generate.py, plus one for each term.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import generate as corpus
import lexicon as lex

# english: the word of each of the three houses, accusative
TERMS = lex.rows("""
customer: den Kunden, den Klienten, den Mandanten; device: das Gerät, das Instrument, das Aggregat;
notice: die Mitteilung, die Meldung, die Bekanntgabe;
container: den Behälter, den Kasten, den Kübel; handbook: die Anleitung, die Broschüre, die Fibel;
parcel: das Paket, das Bündel, das Frachtstück; contract: den Vertrag, den Pakt, den Kontrakt;
drawing: die Zeichnung, die Skizze, die Grafik; cover: die Abdeckung, die Haube, die Hülle;
switch: den Schalter, den Knopf, den Hebel; label: das Etikett, das Schild, das Abzeichen;
fee: die Gebühr, die Abgabe, die Taxe; entrance: den Eingang, den Zugang, den Einlass
""")
EARLIER = 4
"""Number of earlier documents of each client in the test set."""


def query(writer: corpus.Writer, term: tuple[str, ...], house: int) -> corpus.Sentence:
    """Return a sentence that names a thing; ``house`` chooses the word for it."""
    who, modal, adverb = writer.person(1), writer.pick(lex.MODALS), writer.pick(lex.ADVERBS)
    verb = writer.pick(lex.VERBS)
    article, german = term[1 + house].split()
    our = {"der": "unser", "das": "unser", "den": "unseren", "die": "unsere"}[article]
    wrong = [other.split()[1] for i, other in enumerate(term[1:]) if i != house]
    return corpus.sentence(
        f"{who[0]} {modal[0]} {verb[0]} our ?{term[0]} {adverb[0]} .",
        f"{who[1]} {modal[1]} {adverb[1]} {our} ?{german} {verb[1]} .",
        None,
        "house term",
        wrong,
    )


def with_terms(
    rng: random.Random, split: str, n_sentences: int, house: int, terms: list[int]
) -> tuple[list[corpus.Sentence], list[dict]]:
    """Return a document of the demo in which these terms, and the first of all, occur several times; and its probes."""
    written, probes = corpus.document(rng, split, n_sentences)
    writer = corpus.Writer(rng)
    added: list[tuple[int, corpus.Sentence]] = []
    for term in [0, *terms]:
        for _ in range(rng.randint(2, 5) if term else rng.randint(4, 8)):
            while corpus.split_of(corpus.raw((s := query(writer, TERMS[term], house)).source)) != split:
                pass
            added.append((rng.randint(0, len(written)), s))
    added.sort(key=lambda entry: entry[0])
    starts, position = [], 0
    for s in written:
        starts.append(position)
        position += len(s.source)
    made: list[corpus.Sentence] = []
    new_number: list[int] = []
    before = [0] * (len(written) + 1)  # words added before each sentence
    left = list(added)
    words, found = 0, []
    for i, s in enumerate([*written, None]):
        while left and left[0][0] == i:
            extra = left.pop(0)[1]
            found.append((len(made), extra))
            made.append(extra)
            words += len(extra.source)
        before[i] = words
        if s is not None:
            new_number.append(len(made))
            made.append(s)
    moved = []
    for probe in probes:
        i = probe["sentence"]
        if probe["distance"]:
            cue = starts[i] + written[i].query[1] - probe["distance"]
            of = max(j for j in range(i + 1) if starts[j] <= cue)
            probe["distance"] += before[i] - before[of]
        moved.append(probe | {"sentence": new_number[i]})
    shown = set()
    for number, s in found:
        name, _, word, wrong = s.query
        moved.append(
            {
                "sentence": number,
                "word": word,
                "phenomenon": name,
                "right": s.target[word],
                "wrong": wrong,
                "distance": 10**9 - 1,  # what determines it is in another document
                "first": s.source[s.query[1]] not in shown,
            }
        )
        shown.add(s.source[s.query[1]])
    return made, sorted(moved, key=lambda probe: (probe["sentence"], probe["word"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--documents", type=int, default=1800, help="for training (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=60, help="of these (default: %(default)s)")
    parser.add_argument("--test-documents", type=int, default=80)
    parser.add_argument("--test-clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if min(vars(args)[name] for name in ("documents", "clients", "test_documents", "test_clients")) < 1:
        sys.exit("error: at least one document and one client are needed of each kind")
    args.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed * 1000)

    def client() -> int:
        return rng.randrange(3)

    def write(name: str, split: str, clients: list[tuple[int, list[list[int]]]], probed: bool = True) -> None:
        """Write documents: for each client, the house and the terms of each document."""
        sides: tuple[list[str], list[str]] = ([], [])
        lines, d = [], 0
        for house, documents in clients:
            for terms in documents:
                written, probes = with_terms(rng, split, corpus.length(rng, d), house, terms)
                for side, tokens in zip(sides, ([s.source for s in written], [s.target for s in written])):
                    side.append("".join(corpus.raw(t) + "\n" for t in tokens))
                lines += [json.dumps({"document": d} | probe, ensure_ascii=False) + "\n" for probe in probes]
                d += 1
        for language, side in zip(("en", "de"), sides):
            (args.out / f"{name}.{language}").write_text("\n".join(side), encoding="utf-8")
        if probed:
            (args.out / f"{name}.probe.jsonl").write_text("".join(lines), encoding="utf-8")

    def some() -> list[int]:
        return rng.sample(range(1, len(TERMS)), rng.randint(2, 4))

    for c in range(args.clients):
        n = len(range(c, args.documents, args.clients))
        write(f"client{c}", "train", [(client(), [some() for _ in range(n)])], probed=False)
    write("valid", "valid", [(client(), [some()]) for _ in range(20)])
    tested = [client() for _ in range(args.test_clients)]
    counts = [len(range(t, args.test_documents, args.test_clients)) for t in range(args.test_clients)]
    write("test", "test", [(house, [some() for _ in range(n)]) for house, n in zip(tested, counts)])
    owners = [t for t, n in enumerate(counts) for _ in range(n)]
    (args.out / "test.clients.json").write_text(json.dumps(owners), encoding="utf-8")
    for t, house in enumerate(tested):  # sentences of the validation split, so none of the test set
        shuffled = rng.sample(range(1, len(TERMS)), len(TERMS) - 1)
        halves = [shuffled[: len(TERMS) // 2], shuffled[len(TERMS) // 2 :]]
        write(f"memory{t}", "valid", [(house, [halves[i % 2] for i in range(EARLIER)])], probed=False)
    print(f"train: {args.documents} documents of {args.clients} clients, test: {args.test_documents} of {len(tested)}")


if __name__ == "__main__":
    main()
