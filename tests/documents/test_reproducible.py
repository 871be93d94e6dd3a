"""The same translation, to the last bit of its scores, in any company, order and number of threads, everywhere."""

from __future__ import annotations

import json
import random

import pytest
import torch
from helpers import run

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.documents.hub import load_model
from fairseq_lasformer.documents.scoring import log_probabilities, mean
from fairseq_lasformer.ops import cpu

pytestmark = pytest.mark.skipif(cpu.kernels() is None, reason="no CPU kernels")


@pytest.fixture(scope="module")
def documents() -> list[str]:
    """Return a dozen documents of 1 to 40 lines; the longest are translated in overlapping parts."""
    draw = random.Random(4)
    return [
        "\n".join(" ".join(f"w{draw.randrange(30)}" for _ in range(draw.randrange(2, 7))) for _ in range(n))
        for n in (1, 2, 3, 5, 5, 8, 9, 13, 14, 20, 30, 40)
    ]


def translations(model, documents: list[str], order: list[int], **options) -> list[list[tuple[str, float]]]:
    found = model.translate_documents([documents[i] for i in order], 3, lines=True, progress=False, **options)
    lines = dict(zip(order, found))
    return [[(line.translation, line.score) for line in lines[i]] for i in range(len(documents)) if i in lines]


@pytest.mark.command
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_translation_depends_on_its_document_alone(trained_folder, documents, dtype):
    model = load_model(trained_folder, device="cpu", decode_dtype=dtype, reproducible=True)
    everyone = list(range(len(documents)))
    expected = translations(model, documents, everyone)
    assert len({str(lines) for lines in expected}) == len(documents)
    alone = [translations(model, documents, [i])[0] for i in everyone]
    assert alone == expected
    for max_tokens in (1, 50, 200, 1000):
        assert translations(model, documents, everyone[::-1], max_tokens=max_tokens) == expected
    for threads in (1, 2):
        torch.set_num_threads(threads)
        assert translations(model, documents, everyone) == expected
    try:
        for name in cpu.instruction_sets():
            cpu.use_instructions(name)
            if name != "plain":  # which rounds more often; a model that is loaded there uses plain_fused
                assert translations(model, documents, everyone) == expected, name
    finally:
        cpu.use_instructions()


def test_scores_of_given_translations_depend_on_the_pair_alone(trained_folder, documents):
    hub = load_model(trained_folder, device="cpu")
    model, words = hub.models[0], hub.task.target_dictionary
    pairs = [(hub.encode(text.replace("\n", " ")), hub.encode(text.replace("\n", " "))) for text in documents[:9]]
    pairs = [(source, target[: max(2, len(target) // 2)]) for source, target in pairs]
    together = log_probabilities(model, words, pairs, 4096, "cpu")
    alone = [log_probabilities(model, words, [pair], 4096, "cpu")[0] for pair in pairs]
    assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))
    # and they are those of a full pass in PyTorch
    model.decoder.packed = None
    for mine, theirs in zip(together, log_probabilities(model, words, pairs, 4096, "cpu"), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
        assert mean(mine) == pytest.approx(float(mine.double().mean()), abs=1e-12)


PROGRAM = """
import json, logging, sys
logging.disable(logging.WARNING)
from fairseq_lasformer.documents.hub import load_model
from fairseq_lasformer.ops import cpu
folder, documents = sys.argv[1], json.loads(sys.argv[2])
model = load_model(folder, device="cpu", reproducible=True)
found = model.translate_documents(documents, 3, lines=True, progress=False)
print(json.dumps([cpu.instructions_in_use(), [[(line.translation, line.score) for line in its] for its in found]]))
"""


@pytest.mark.command
def test_pytorchs_instructions_do_not_matter(trained_folder, documents):
    """Results of PyTorch and its libraries differ by processor; processors without fused instructions add them."""
    found = []
    for kernels, torchs, mkls in (("", "", ""), ("plain", "default", "SSE4_2"), ("", "avx2", "AVX2")):
        env = {"LASFORMER_ISA": kernels, "ATEN_CPU_CAPABILITY": torchs, "MKL_ENABLE_INSTRUCTIONS": mkls}
        env = {name: value for name, value in env.items() if value}
        done = run("python", "-c", PROGRAM, trained_folder, json.dumps(documents[:9]), **env)
        found.append(json.loads(done.stdout))
    assert found[1][0] == ("plain_fused" if "plain_fused" in cpu.instruction_sets() else "plain")
    assert found[0][1] == found[1][1] == found[2][1]


def test_what_cannot_be_reproducible_is_refused(trained_folder, tmp_path):
    shortlist = tmp_path / "list"
    for options, message in (
        ({"shortlist": shortlist}, "--reproducible: not with --shortlist"),
        ({"device": "cuda"}, "there is no GPU here|--reproducible: works only on a CPU"),
    ):
        with pytest.raises(InputError, match=message):
            load_model(trained_folder, **{"device": "cpu", "reproducible": True, **options})
    model = load_model(trained_folder, device="cpu", reproducible=True)
    with pytest.raises(InputError, match="--reproducible: not with --max-len-a"):
        model.translate_documents(["w1 w2"], max_len_a=0.8, max_len_b=0)
    assert (
        model.translate_documents(["w1 w2"], max_len_b=9) == model.translate_documents(["w1 w2", "w3"], max_len_b=9)[:1]
    )
