"""Keys in the query's bucket of a locality-sensitive hash (Kitaev et al. 2020, arXiv 2001.04451, section 2)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_lasformer.nn.others.relational import Places, Relational, near
from fairseq_lasformer.nn.patterns.base import PatternOptions

SEED = 2001_04451
"""Seed of the hash, which is the same in every model; it is not trained, but saved with the model."""


@dataclass(frozen=True)
class Hashes:
    """Parameters of ``reformer``."""

    buckets: int  # number of buckets of a hash, even; 1: all keys share one
    rounds: int = 2  # number of hashes; a key is kept if one of them puts it into the query's bucket

    def __post_init__(self) -> None:
        if self.buckets > 1 and self.buckets % 2:
            raise ValueError("expected an even number of buckets, as in reformer:buckets=16,rounds=2")


class Reformer(Relational[Hashes]):
    """The keys in the query's bucket, and the key at its own position.

    ``--select-pattern reformer:buckets=16,rounds=2``

    The hash of a state x is argmax([x R; -x R]) with a random matrix R (angular hashing). The input of the attention is
    hashed, because queries and keys of a layer are not the same vectors here. Buckets are not split into chunks: a
    query reads its whole bucket. About ``rounds / buckets`` of the keys are kept if states are spread evenly, which
    :meth:`cost` assumes.
    """

    name = "reformer"
    usage = "reformer:buckets=N[,rounds=N]"
    kind = Hashes
    example = "reformer:buckets=16,rounds=2"
    coded = True
    packable = False  # it reads the input of the attention, which the fast decoder does not expose
    rotations: Tensor

    def __init__(self, its_numbers: Hashes, options: PatternOptions) -> None:
        super().__init__(its_numbers, options)
        if options.query_dim != options.key_dim:
            raise ValueError("not supported with different widths of encoder and decoder")
        shape = its_numbers.rounds, options.query_dim, its_numbers.buckets // 2
        self.register_buffer("rotations", torch.randn(shape, generator=torch.Generator().manual_seed(SEED)))

    def code(self, states: Tensor) -> Tensor:
        """Return the bucket in each round, [..., d] -> float [..., rounds]: small whole numbers."""
        if self.numbers.buckets == 1:
            return states.new_zeros(*states.shape[:-1], self.numbers.rounds)
        turned = torch.einsum("...d,rdb->...rb", states.float(), self.rotations.float())
        return torch.cat([turned, -turned], -1).argmax(-1).to(states.dtype)

    def keeps(self, query: Places, key: Places, n_keys: Tensor) -> Tensor:
        keys = near(query, key, n_keys, 1)
        if query.code is None or key.code is None:  # for the cost, without a text
            share = min(1.0, self.numbers.rounds / self.numbers.buckets)
            return keys | ((key.position * share) % 1 < share)
        for i in range(self.numbers.rounds):
            keys = keys | (query.code[..., i] == key.code[..., i])
        return keys
