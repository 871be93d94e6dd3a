"""Options of the task. fairseq reads the annotations at run time: no ``from __future__ import annotations`` here."""

from dataclasses import dataclass

from fairseq.dataclass import ChoiceEnum
from fairseq.tasks.translation import TranslationConfig
from omegaconf import II

from fairseq_lasformer.base.options import fairseq_option
from fairseq_lasformer.ops import BACKENDS

# Default maximum length of a translation: a times the number of source tokens, plus b (--max-len-a, --max-len-b).
MAX_LEN = (1.5, 50)


@dataclass
class DocumentTranslationConfig(TranslationConfig):
    word_dropout: float = fairseq_option(
        0.0, "probability of replacing a word with <unk>, on both sides, in every update"
    )
    subword_sampling: float = fairseq_option(
        0.0,
        "training: redraw the subwords every epoch; sentencepiece: in proportion to their probability to "
        "the power of this, such as 0.3; subword-nmt: each merge is dropped with this probability, such as 0.1; "
        "0: never",
    )
    denoise_temperature: float = fairseq_option(
        5.0,
        "training with monolingual documents (lasformer prepare --mono): they and the pairs are drawn in "
        "proportion to their number to the power of 1 / this; 1: in proportion to their number; 0: only the pairs",
    )
    denoise_mask: float = fairseq_option(0.35, "masked share of the monolingual documents' tokens")
    denoise_span: float = fairseq_option(3.5, "mean length of a masked span, in tokens")
    denoise_permute: float = fairseq_option(1.0, "probability that the sentences of a monolingual example are shuffled")
    seed: int = II("common.seed")
    max_source_positions: int = fairseq_option(4096, "longest source example, in tokens")
    max_target_positions: int = fairseq_option(4096, "longest target example, in tokens")
    upsample_primary: int = fairseq_option(1, "how often the first of several binarised splits is used")
    split_lines: float = fairseq_option(
        0.0,
        "training: share of the lines of at least 7 words that are cut in two, other ones in every update, "
        "so that each needs its neighbour; it falls to 0 over the last third of --max-update; needs a separator",
    )
    max_update: int = II("optimization.max_update")
    save_interval_minutes: float = fairseq_option(
        0.0, "training with one worker: save a checkpoint after this many minutes; 0: never"
    )
    align_sentences: ChoiceEnum(["auto", "yes", "no"]) = fairseq_option(  # type: ignore[valid-type]
        "auto",
        "generation: as many lines in a translation as in its source (yes), as many as the model decides "
        "(no), or as many if the data has a separator (auto)",
    )
    sentence_max_len_a: float = fairseq_option(
        2.0, "generation: an aligned line of n tokens gets at most a * n + b; this is a"
    )
    sentence_max_len_b: float = fairseq_option(20.0, "the b of --sentence-max-len-a")
    repair: int = fairseq_option(
        2,
        "for lines side by side and single sentences: whether to search one again that reached its limit or "
        "repeats itself; 0: such lines are only reported",
    )
    overlap: int = fairseq_option(
        3,
        "lasformer generate and the Python interface: for documents beyond the limit, number of sentences "
        "before each part that are read with it, and after it where lines are searched side by side",
    )
    glossary: str = fairseq_option(
        "",
        "lasformer generate: file of source terms and their translations, separated by a tab; the "
        "translations are required where the terms occur",
    )
    memory: str = fairseq_option(
        "",
        "lasformer generate: a translation memory (lasformer memory build); its terms are required, or "
        "read in similar pairs by models trained with memories",
    )
    shortlist: str = fairseq_option(
        "",
        "generation: file written by lasformer shortlist; only words that may translate a document are "
        "scored, which is faster for large vocabularies",
    )
    attention_backend: ChoiceEnum(list(BACKENDS)) = fairseq_option(  # type: ignore[valid-type]
        "auto",
        "implementation of selection and attention; auto: the kernels for the device; reference: the "
        "definitions, in plain PyTorch",
    )
    linear_dtype: ChoiceEnum(["float32", "bfloat16", "auto"]) = fairseq_option(  # type: ignore[valid-type]
        "float32",
        "training on a CPU: type in which linear layers are multiplied; weights, sums and everything else "
        "are float32; bfloat16 needs AMX or AVX512-BF16 and is faster there; auto: bfloat16 if possible",
    )
    decode_dtype: ChoiceEnum(["float32", "int8"]) = fairseq_option(  # type: ignore[valid-type]
        "float32",
        "generation on a CPU: type of the linear layers' weights; int8 is faster and nearly as exact; "
        "selectors are unchanged",
    )
    cache_dtype: ChoiceEnum(["float32", "int8"]) = fairseq_option(  # type: ignore[valid-type]
        "float32", "generation on a CPU: type of the cached keys and values; int8 is faster for long texts"
    )
    reproducible: bool = fairseq_option(
        False,
        "generation on a CPU: reject models and options whose translations depend on the rest of the "
        "batch, the number of threads or the processor",
    )
    cuda_graph: bool = fairseq_option(
        False, "capture a decoding step in a CUDA graph and replay it (generation on a GPU with Triton)"
    )
    expert_parallel: bool = fairseq_option(
        False,
        "training: keep each expert of a mixture on one worker (needs --ddp-backend legacy_ddp); "
        "checkpoints are ordinary ones",
    )
