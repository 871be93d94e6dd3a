"""``--remove-bpe`` and ``--post-process`` of fairseq's tools, which prepared data makes needless."""

import logging
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq import options, utils

from fairseq_lasformer.data.subwords import SETTINGS
from fairseq_lasformer.plugin.patches import wrap

logger = logging.getLogger(__name__)


def install() -> None:
    """Ignore the options for prepared data. Repeated calls have no effect."""
    wrap(options, "parse_args_and_arch", _ignore)


def _ignore(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Parse the options, without the removal of subwords where the task decodes whole lines.

    fairseq would join the subwords, and our task the words that are left, into one.
    """
    found = original(*args, **kwargs)
    known = found if isinstance(found, Namespace) else found[0]
    if getattr(known, "post_process", None) and getattr(known, "task", None) == "document_translation":
        folders = utils.split_paths(str(getattr(known, "data", "")))
        if folders and (Path(folders[0]) / SETTINGS).exists():
            logger.warning(
                "--remove-bpe (--post-process) is ignored: %s has its own subwords, and translations are text",
                folders[0],
            )
            known.post_process = None
    return found
