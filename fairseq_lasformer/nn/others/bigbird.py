"""A window, global tokens and random keys (Zaheer et al. 2020, arXiv 2007.14062, the internal construction, ITC)."""

from dataclasses import dataclass, field

from torch import Tensor

from fairseq_lasformer.nn.others.relational import Places, Relational, near


@dataclass(frozen=True)
class Shares:
    """Parameters of ``bigbird``, each in tokens, where the paper has blocks."""

    window: int  # the keys nearest to the query
    # the first tokens, which all attend to and which attend to all (option `global`)
    of_all: int = field(default=2, metadata={"option": "global"})
    random: int = 3  # random keys of each query


class BigBird(Relational[Shares]):
    """``--select-pattern bigbird:window=64,global=2,random=3``.

    The random keys depend only on the query's position and the number of keys, so that steps keep the same keys as a
    full pass.
    """

    name = "bigbird"
    usage = "bigbird:window=N[,global=N][,random=N]"
    kind = Shares
    example = "bigbird:window=64,global=2,random=3"

    def keeps(self, query: Places, key: Places, n_keys: Tensor) -> Tensor:
        window, of_all, random = self.numbers.window, self.numbers.of_all, self.numbers.random
        keys = near(query, key, n_keys, window) | (key.position < of_all) | (query.position < of_all)
        for i in range(random):
            keys = keys | (key.position == scattered(query.position * random + i) % n_keys.clamp_min(1))
        return keys


def scattered(numbers: Tensor) -> Tensor:
    """Hash int64 numbers to pseudo-random ones below 2^32, the same on every machine: multiply and shift, twice."""
    for factor, shift in ((2_654_435_761, 15), (2_246_822_519, 13)):
        numbers = numbers * factor % 2**32
        numbers = numbers ^ (numbers >> shift)
    return numbers
