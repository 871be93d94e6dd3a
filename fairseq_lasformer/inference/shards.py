"""``python -m fairseq_lasformer.inference.shards 0,2 OPTIONS…``: translates some shards of a split, one after another.

Takes fairseq-generate's options. Prints one line of JSON per example, ``{"id": …, "tokens": …}``, and ``end of shard
I`` after each shard. Run by :mod:`fairseq_lasformer.inference.generate`.
"""

from __future__ import annotations

import ast
import json
import sys
from argparse import Namespace
from typing import Any

import torch
from fairseq import checkpoint_utils, options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_lasformer.inference.translator import Translator
from fairseq_lasformer.plugin import compat, register

END = "end of shard "


def parse(arguments: list[str]) -> Any:
    """Parses fairseq-generate's command line into its configuration."""
    parser = options.get_generation_parser()
    namespace: Namespace = options.parse_args_and_arch(parser, arguments)
    return convert_namespace_to_omegaconf(namespace)


def dataset_options(cfg: Any, task: Any, models: list[Any]) -> dict[str, Any]:
    """The options that determine how a split is divided into batches."""
    limits = [model.max_positions() for model in models]
    return {
        "max_tokens": cfg.dataset.max_tokens,
        "max_sentences": cfg.dataset.batch_size,
        "max_positions": utils.resolve_max_positions(task.max_positions(), *limits),
    }


def load_models(cfg: Any, task: Any) -> tuple[list[Any], torch.device]:
    """Loads the ensemble given by ``--path``, in evaluation mode, on the device that the options select."""
    overrides = ast.literal_eval(cfg.common_eval.model_overrides)
    models, _ = checkpoint_utils.load_model_ensemble(
        utils.split_paths(cfg.common_eval.path),
        arg_overrides=overrides,
        task=task,
        suffix=cfg.checkpoint.checkpoint_suffix,
        strict=cfg.checkpoint.checkpoint_shard_count == 1,
        num_shards=cfg.checkpoint.checkpoint_shard_count,
    )
    device = torch.device("cuda" if torch.cuda.is_available() and not cfg.common.cpu else "cpu")
    for model in models:
        if cfg.common.fp16:
            model.half()
        elif cfg.common.bf16:
            model.bfloat16()
        model.to(device)
        model.prepare_for_inference_(cfg)
    return models, device


def main() -> None:
    register()
    compat.errors_in_one_line()
    shards, *arguments = sys.argv[1:]
    cfg = parse(arguments)
    utils.import_user_module(cfg.common)
    task = tasks.setup_task(cfg.task)
    task.load_dataset(cfg.dataset.gen_subset, task_cfg=cfg.task)
    dataset = task.dataset(cfg.dataset.gen_subset)
    models, device = load_models(cfg, task)
    translator = Translator(task, models, cfg.generation)
    n_shards = cfg.distributed_training.distributed_world_size
    for shard in map(int, shards.split(",")):
        if cfg.common.seed is not None and not cfg.generation.no_seed_provided:
            utils.set_torch_seed(cfg.common.seed)  # for --sampling: per shard, as if the shard were run alone
        batches = translator.batches(dataset, num_shards=n_shards, shard_id=shard, **dataset_options(cfg, task, models))
        for i, tokens in translator.translate(batches, device):
            text = task.target_dictionary.string(tokens.int().cpu())
            print(json.dumps({"id": i, "tokens": text}, ensure_ascii=False), flush=True)
        print(f"{END}{shard}", flush=True)


if __name__ == "__main__":
    main()
