"""Names of dictionaries that pass between rooms: fairseq's, and those that are written as JSON."""

from typing import Any

Sample = dict[str, Any]
"""A batch as fairseq's datasets collate it: ``id``, ``net_input``, ``target``, ``ntokens``, ``nsentences``."""

Log = dict[str, Any]
"""Sums of a batch by name, which a criterion returns and ``reduce_metrics`` adds up."""

Hypothesis = dict[str, Any]
"""A translation as a search returns it: ``tokens``, ``score``, ``positional_scores``, ``attention``, ``alignment``."""

EncoderOut = dict[str, Any]
"""Output of an encoder by name, each a list as fairseq's search expects; see ``plugin.encoder``."""

State = dict[str, Any]
"""Content of a checkpoint: ``cfg``, ``model``, ``extra_state`` and more; see ``checkpoints.loading``."""

Scores = dict[str, Any]
"""Scores by name, as ``lasformer score --json`` writes them; groups of scores are dictionaries again."""

Json = dict[str, Any]
"""An object of JSON or YAML: texts, numbers, lists and further objects by name."""
