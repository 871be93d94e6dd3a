"""Options of the task. fairseq reads the annotations at run time: no ``from __future__ import annotations`` here."""

from dataclasses import dataclass, field

from fairseq.dataclass import ChoiceEnum
from fairseq.tasks.translation import TranslationConfig
from omegaconf import II

from fairseq_lasformer.ops import BACKENDS

# Default maximum length of a translation: a times the number of source tokens, plus b (--max-len-a, --max-len-b).
MAX_LEN = (1.5, 50)


@dataclass
class DocumentTranslationConfig(TranslationConfig):
    word_dropout: float = field(
        default=0.0, metadata={"help": "probability of replacing a word by <unk>, on both sides, drawn every update"}
    )
    subword_sampling: float = field(
        default=0.0,
        metadata={
            "help": "training: draw other subwords in every epoch; with sentencepiece in proportion to their "
            "probability to this power, such as 0.3, with subword-nmt without each merge with this probability, such "
            "as 0.1; 0: never"
        },
    )
    denoise_temperature: float = field(
        default=5.0,
        metadata={
            "help": "training with documents of one language (lasformer prepare --mono): they and the pairs are drawn "
            "in proportion to their number to the power of 1 / this; 1: as many as there are; 0: none of them"
        },
    )
    denoise_mask: float = field(default=0.35, metadata={"help": "share of their tokens that is masked"})
    denoise_span: float = field(default=3.5, metadata={"help": "mean length of a masked span, in tokens"})
    denoise_permute: float = field(
        default=1.0, metadata={"help": "probability that the sentences of such an example change places"}
    )
    seed: int = II("common.seed")
    max_source_positions: int = field(default=4096, metadata={"help": "longest source example, in tokens"})
    max_target_positions: int = field(default=4096, metadata={"help": "longest target example, in tokens"})
    upsample_primary: int = field(
        default=1, metadata={"help": "how often the first of several binarised splits counts"}
    )
    upsample_long: int = field(
        default=1,
        metadata={
            "help": "training: how often an epoch holds each example that is at least half as long as the longest"
        },
    )
    save_interval_minutes: float = field(
        default=0.0,
        metadata={
            "help": "training with one worker: save a checkpoint whenever this many minutes have passed; 0: never"
        },
    )
    align_sentences: bool = field(
        default=False,
        metadata={
            "help": "generation: require as many lines in a translation as in its source; the default where the data "
            "has a separator, an error where it has none"
        },
    )
    no_align_sentences: bool = field(
        default=False, metadata={"help": "generation: let the model decide how many lines a translation has"}
    )
    sentence_max_len_a: float = field(
        default=2.0, metadata={"help": "generation: an aligned line of n tokens is translated by at most a * n + b"}
    )
    sentence_max_len_b: float = field(default=20.0, metadata={"help": "see --sentence-max-len-a"})
    repair: int = field(
        default=2,
        metadata={
            "help": "generation: how often an aligned document is searched again, from a line on that reached its "
            "limit or repeats itself; 0: such lines are only reported"
        },
    )
    overlap: int = field(
        default=3,
        metadata={
            "help": "lasformer generate and the Python interface: sentences that each part of a document beyond the "
            "limit repeats from the part before, as context, already translated"
        },
    )
    glossary: str = field(
        default="",
        metadata={
            "help": "lasformer generate: file of source terms and their translations, separated by a tab, which are "
            "required where the terms occur"
        },
    )
    memory: str = field(
        default="",
        metadata={
            "help": "lasformer generate: a translation memory (lasformer memory build), whose pairs that are like a "
            "document are read before it"
        },
    )
    memory_tokens: int = field(
        default=256, metadata={"help": "lasformer generate: most tokens of these pairs before a part of a document"}
    )
    shortlist: str = field(
        default="",
        metadata={
            "help": "generation: file that lasformer shortlist wrote; only words that may translate a document are "
            "scored, which is faster for large vocabularies"
        },
    )
    attention_backend: ChoiceEnum(list(BACKENDS)) = field(  # type: ignore[valid-type]
        default="auto",
        metadata={
            "help": "what computes selection and attention; auto: the kernels that the device has; reference: the "
            "definitions, in plain PyTorch"
        },
    )
    quantization_aware: bool = field(
        default=False,
        metadata={
            "help": "training and validation: linear layers compute with weights rounded to 8 bits, so that a model "
            "loses less with --decode-dtype int8"
        },
    )
    decode_dtype: ChoiceEnum(["float32", "int8"]) = field(  # type: ignore[valid-type]
        default="float32",
        metadata={
            "help": "generation: type of the linear layers' weights (on a GPU, of the decoder's); int8 is faster on a "
            "CPU, and nearly as exact; selectors stay as they are"
        },
    )
    cache_dtype: ChoiceEnum(["float32", "int8"]) = field(  # type: ignore[valid-type]
        default="float32",
        metadata={
            "help": "generation: type of the keys and values that are kept; int8 is faster for long texts on a CPU, "
            "and takes about half as much memory as 16 bits"
        },
    )
    reproducible: bool = field(
        default=False,
        metadata={
            "help": "generation on a CPU: refuse models and options whose translations depend on what else is in the "
            "batch, the number of threads or the processor"
        },
    )
    cuda_graph: bool = field(
        default=False,
        metadata={"help": "capture a decoding step in a CUDA graph and replay it (generation on a GPU with Triton)"},
    )
    cuda_graph_tokens: int = field(
        default=0,
        metadata={
            "help": "training on a GPU with Triton: batches of at most this many tokens, as --max-tokens counts "
            "them, are padded to one of a few shapes, whose steps are captured in CUDA graphs and replayed; 0: none"
        },
    )
    expert_parallel: bool = field(
        default=False,
        metadata={
            "help": "training: every expert of a mixture lives on one worker (needs --ddp-backend legacy_ddp); the "
            "checkpoint is an ordinary one"
        },
    )
