"""A checkpoint whose selectors choose at random: what it loses beside the original is what the choice is worth.

    python -m benchmarks.random_keys CHECKPOINT OUT

Weights of the selectors are drawn again, as large as they were, and their biases are 0.
"""

import argparse
from pathlib import Path

import torch

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.checkpoints.loading import chosen, load, save


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.random_keys", description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    state = load(chosen(args.checkpoint))
    torch.manual_seed(1)
    selectors = {name: weight for name, weight in state["model"].items() if ".selector." in name}
    if not selectors:
        raise InputError(f"{args.checkpoint}: selects nothing")
    for name, weight in selectors.items():
        if name.endswith("weight"):
            state["model"][name] = torch.randn_like(weight) * weight.std()
        elif name.endswith("bias"):
            state["model"][name] = torch.zeros_like(weight)
    save(state, args.out)


if __name__ == "__main__":
    main()
