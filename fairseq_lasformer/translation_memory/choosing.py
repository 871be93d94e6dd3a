"""Choice of the memory sentences that precede a text: few that together show most of its rare words."""

import heapq
from collections.abc import Callable, Sequence

from fairseq_lasformer.translation_memory.matching import Match


def chosen(found: Sequence[Sequence[Match]], size: Callable[[Match], int], budget: int) -> list[Match]:
    """Choose the matches that precede a text, the most useful one last, next to it.

    In each step, the match that adds most is chosen: the squared weights of the words that it shares with its lines and
    that no match before it has shown, times its similarity. So a word is shown once before others are shown twice, and
    no match is chosen that only repeats.

    Args:
        found: the matches of each line of the text.
        size: number of tokens of a match.
        budget: maximum number of tokens of all matches; a match that does not fit is skipped.
    """
    every: dict[int, Match] = {}
    shared: dict[int, dict[str, float]] = {}
    likeness: dict[int, float] = {}
    for matches in found:
        for match in matches:
            every[match.number] = match
            shared.setdefault(match.number, {}).update(match.shared)
            likeness[match.number] = max(likeness.get(match.number, 0.0), match.similarity)
    shown = set[str]()

    def gain(number: int) -> float:
        new = sum(weight * weight for word, weight in shared[number].items() if word not in shown)
        return new * likeness[number]

    heap = [(-gain(number), number) for number in every]
    heapq.heapify(heap)
    taken: list[Match] = []
    while heap and budget > 0:
        _, number = heapq.heappop(heap)
        now = gain(number)  # others may have shown its words since
        if now <= 0:
            continue
        if heap and now < -heap[0][0]:
            heapq.heappush(heap, (-now, number))
            continue
        if (tokens := size(every[number])) <= budget:
            taken.append(every[number])
            budget -= tokens
            shown |= shared[number].keys()
    return taken[::-1]
