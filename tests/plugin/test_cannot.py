"""What goes with what: every pair of options is refused in one line, or works."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from helpers import SMALL, tokens

from fairseq_lasformer.base.cannot import CANNOT, DELIGHT, MIXTURES, refuse, table
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.plugin.config import LasformerConfig
from fairseq_lasformer.plugin.model import LasformerModel, RunOptions

MODEL: dict[str, dict[str, Any]] = {
    MIXTURES: {"moe_experts": 4},
    DELIGHT: {"delight": "official", "select_dim": 2},
    "--own-lines": {"own_lines": True},
    "--source-context-only": {"own_lines": True, "source_context_only": True},
    "--tie-groups": {"tie_groups": True},
    "--group-drop": {"group_drop": 0.5},
    "--fewer-heads": {"fewer_heads": "cross=1"},
    "--output-bias": {"output_bias": True},
    "--embedding define": {"embedding": "define", "define_dim": 8, "define_expand": 16, "define_groups": 2},
    "--embedding delight": {"embedding": "delight"},
    "--position-table": {"position_table": "reproducible"},
    "--encoder-learned-pos": {"encoder_learned_pos": True},
    "--decoder-learned-pos": {"decoder_learned_pos": True},
    "--no-token-positional-embeddings": {"no_token_positional_embeddings": True},
    "--checkpoint-activations": {"checkpoint_activations": True},
    "--share-all-embeddings": {"share_all_embeddings": True},
    "--supervise-rows": {"supervise_rows": "4"},
    "--sparsity-fixed": {"sparsity_fixed": 0.5},
    **{f"--select-pattern {name}": {"select_pattern": name} for name in ("window:4", "etc:window=4", "rfa:features=8")},
}
RUN: dict[str, dict[str, Any]] = {
    "--reproducible": {"reproducible": True},
    "--decode-dtype": {"int8": True},
    "--cache-dtype": {"int8_cache": True},
    "--cuda-graph": {"cuda_graph": True},
}
EXCLUDED = {
    **{"another --embedding than lookup": ("--embedding define", "--embedding delight")},
    **{name: (name,) for its in CANNOT.values() for name in its},
}
EXCLUDING = {
    frozenset((option, name)): option
    for option, its in CANNOT.items()
    for what in its
    for name in EXCLUDED.get(what, (what,))
    if option in MODEL and name in MODEL
} | {frozenset(("--output-bias", name)): "--output-bias" for name in ("--embedding define", "--embedding delight")}


def attempt(small_task: Any, options: dict[str, Any], run: dict[str, Any]) -> str:
    """Build a model, train it for a step and search with it; return why that is refused, or nothing."""
    try:
        task = SimpleNamespace(**vars(small_task), run_options=RunOptions("auto", **run))
        model = LasformerModel.build_model(LasformerConfig(**(SMALL | options)), task)
        source = tokens(2, 9)
        sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(1).sum(1)}}
        if not run:
            model.train()(**sample["net_input"], prev_output_tokens=source)[0].sum().backward()
        model.eval().make_generation_fast_(need_attn=False)
        search = SequenceGenerator([model], small_task.target_dictionary, beam_size=2, max_len_a=0, max_len_b=5)
        assert len(search.generate([model], sample)) == 2
    except InputError as e:
        assert str(e) and "\n" not in str(e)
        return str(e)
    return ""


@pytest.mark.parametrize("first", MODEL)
def test_every_pair_of_models_options_is_refused_or_works(small_task, first):
    torch.manual_seed(1)
    names = [*MODEL]
    for second in names[names.index(first) :]:
        told = attempt(small_task, MODEL[first] | MODEL[second], {})
        option = EXCLUDING.get(frozenset((first, second)))
        assert told.startswith(f"{option}: not with ") if option else told == "" or second in told, (second, told)


@pytest.mark.parametrize("first", RUN)
def test_every_pair_with_an_option_of_decoding_is_refused_or_works(small_task, first):
    others = {name: (options, {}) for name, options in MODEL.items()} | {name: ({}, run) for name, run in RUN.items()}
    for second, (options, run) in others.items():
        told = attempt(small_task, options, RUN[first] | run)
        if "--cuda-graph" in (first, second) and not torch.cuda.is_available():
            assert "--cuda-graph requires a GPU" in told
        elif told:
            assert told.startswith((*RUN, second)) and "not with" in told, (second, told)


@pytest.mark.parametrize(("option", "what"), [(option, what) for option, its in CANNOT.items() for what in its])
def test_a_refusal_names_both_and_what_to_do(option, what):
    with pytest.raises(InputError) as error:
        refuse(option, dict.fromkeys(CANNOT[option], False) | {what: True})
    assert str(error.value) == f"{option}: not with {what} ({CANNOT[option][what]})"
    refuse(option, dict.fromkeys(CANNOT[option], False))


def test_unknown_names_are_a_mistake_of_ours():
    with pytest.raises(KeyError):
        refuse("--reproducible", {"the moon": True})
    assert all(option in table() for option in CANNOT)


def test_the_pairs_that_exclude_each_other_are_tried():
    assert len(EXCLUDING) == 7 and len([*itertools.combinations(MODEL, 2)]) > 200
