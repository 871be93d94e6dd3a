"""Parts shared by encoder and decoder: word and position embeddings, and the length limits."""

import math
from typing import Any

import torch
from fairseq.modules import LearnedPositionalEmbedding, PositionalEmbedding, SinusoidalPositionalEmbedding
from torch import Tensor, nn

from fairseq_lasformer import ops
from fairseq_lasformer.nn.decoding.packed_modules import Unsupported, fixed
from fairseq_lasformer.nn.dropout import Dropout
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.nn.others.lines import LineEnds
from fairseq_lasformer.nn.rotary import frequencies, rotations
from fairseq_lasformer.nn.stack import LayerStack
from fairseq_lasformer.plugin.config import ModuleConfig
from fairseq_lasformer.plugin.positions import ReproduciblePositions, VaswaniPositions


def some_padding(mask: Tensor) -> Tensor | None:
    """Return a padding mask, bool [B, N], True at padding; None if there is no padding."""
    return mask if bool(mask.any()) else None


class Frontend(nn.Module):
    """Base of encoder and decoder, in addition to fairseq's."""

    layer_norm: nn.Module | None
    line_ends: LineEnds
    line_frequency: Tensor
    layers: LayerStack

    def _add_embeddings(
        self,
        cfg: ModuleConfig,
        run: RunOptions,
        embed_tokens: Any,
        max_positions: int,
        learned_pos: bool,
    ) -> None:
        """Register the modules that precede the layers, in the order of fairseq's encoder and decoder.

        Args:
            run: backend, CUDA graph, expert group.
            embed_tokens: word embeddings, [B, N] -> [B, N, d].
            learned_pos: learned instead of sinusoidal positions.
        """
        self.cfg, self.run_options = cfg, run
        self.register_buffer("version", torch.Tensor([3]))  # fairseq's checkpoint format
        self.dropout_module = Dropout(cfg.dropout, type(self).__name__)
        dim, self.padding_idx = embed_tokens.embedding_dim, embed_tokens.padding_idx
        self.embed_tokens = embed_tokens
        self.embed_scale = 1.0 if cfg.no_scale_embedding else math.sqrt(dim)
        self.embed_positions: Any = None
        if not cfg.no_token_positional_embeddings:
            if cfg.position_table == "vaswani":
                self.embed_positions = VaswaniPositions(dim, self.padding_idx, max_positions + self.padding_idx + 1)
            else:
                self.embed_positions = PositionalEmbedding(max_positions, dim, self.padding_idx, learned=learned_pos)
        self.layernorm_embedding: nn.Module | None = nn.LayerNorm(dim) if cfg.layernorm_embedding else None
        self.longest = max_positions

    def _add_ends(self, eos: int, separator: int | None) -> None:
        """Record the words that end a line, once the layers are built: a separator, and the end of sentence."""
        words = (eos,) if separator is None else (eos, separator)
        self.line_ends = LineEnds(words, (pattern for _, pattern in self.layers.patterns()), bool(self.cfg.own_lines))
        self.tells_lines = bool(self.cfg.own_lines)  # whether attentions are told how many lines a key is away
        if self.tells_lines:
            self.register_buffer("line_frequency", frequencies())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        name = prefix + "line_frequency"
        if self.cfg.own_lines:
            if name not in state_dict:  # of an earlier version, which rotated nothing
                state_dict[name] = torch.zeros(ops.PAIRS)
            self.tells_lines = bool(state_dict[name].any())
        super()._load_from_state_dict(state_dict, prefix, *args)

    def rotations(self, line: Tensor) -> Tensor | None:
        """Return the rotations of tokens by the numbers of their lines, [...] -> [..., 8, 2]; None for none."""
        return rotations(line, self.line_frequency) if self.tells_lines else None

    def check_kernels(self, retain_dropout: bool) -> None:
        """Raise :class:`Unsupported` if generation keeps dropout or is not on a CPU with the kernels."""
        if retain_dropout:
            raise Unsupported("--retain-dropout")
        if ops.backend_for(next(self.layers.parameters()).device, self.run_options.backend) != "cpu":
            raise Unsupported("a device or backend without these kernels")

    def fix(self) -> None:
        """Make the modules around the layers compute each row from that row alone."""
        if self.run_options.reproducible:  # only then: without the instructions it is slow
            ops.fuse_multiply_adds()
        fixed(self.layernorm_embedding)
        fixed(self.layer_norm)
        plain = not isinstance(self.embed_positions, ReproduciblePositions)
        if plain and isinstance(self.embed_positions, SinusoidalPositionalEmbedding):
            self.embed_positions = ReproduciblePositions(self.embed_positions)

    def max_positions(self) -> int:
        """Return the maximum sequence length; sinusoidal positions do not reduce the task's limit."""
        if isinstance(self.embed_positions, LearnedPositionalEmbedding):
            return min(self.longest, self.embed_positions.max_positions)
        return self.longest if self.embed_positions is None else int(self.embed_positions.max_positions)

    def position_embeddings(self, tokens: Tensor, places: Tensor | None = None) -> Tensor | None:
        """Return the position embeddings of a full pass, [B, N, d]; None for a model without them.

        Args:
            tokens: int64 [B, N].
            places: int64 [B, N], the position of each token, if it is not counted from the beginning of the text.
        """
        if self.embed_positions is None or places is None:
            return None if self.embed_positions is None else self.embed_positions(tokens)
        positions = self.padding_idx + (1 + places) * tokens.ne(self.padding_idx)
        return self.positions_at(positions, tokens.size(1))

    def positions_at(self, positions: Tensor, longest: int) -> Tensor:
        """Return the embeddings of positions counted from ``padding_idx`` + 1; ``longest``: the tokens so far."""
        table, first = self.embed_positions, self.padding_idx + 1
        if isinstance(table, LearnedPositionalEmbedding):
            return table.weight[positions]
        if first + longest > table.weights.size(0):
            table(positions.new_full((1, longest), first))  # makes the table longer
        return table.weights[positions]

    def embed_words(self, words: Tensor, positions: Tensor | None) -> Tensor:
        """Combine scaled word embeddings [..., d] and position embeddings to the input of the layers."""
        x = words if positions is None else words + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout_module(x) if self.training else x
