"""fairseq and Hydra 1.3 on Python 3.14.

There, ``Optional[str]`` is written ``str | None``. fairseq reads the annotations of its tasks' options while it is
imported, by their spelling, and does not know this one: the function that reads them is wrapped as soon as its module
is loaded, before that of the tasks. And ``argparse`` checks each help text when it is added; one of Hydra's is no text.
"""

import functools
import sys
import types
from argparse import Action, ArgumentParser
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Union, get_args, get_origin

MODULE = "fairseq.dataclass.utils"


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == MODULE else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                module.interpret_dc_type = functools.partial(without_none, module.interpret_dc_type)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def without_none(read: Callable[[Any], Any], kind: Any) -> Any:
    """Return what ``read`` returns for an annotation, for ``X | None`` as for ``X``."""
    union = get_origin(kind) is Union or isinstance(kind, types.UnionType)
    kinds = [each for each in get_args(kind) if each is not type(None)]
    return read(kinds[0] if union and len(kinds) == 1 else kind)


def install() -> None:
    """Wrap that function when fairseq is imported, and argparse's check; a second call has no effect."""
    if any(type(finder).__module__ == __name__ for finder in sys.meta_path):  # also of a package imported before
        return
    sys.meta_path.insert(0, _Finder())
    check = getattr(ArgumentParser, "_check_help", None)
    if check is not None:

        def check_text(self: ArgumentParser, action: Action) -> None:
            if isinstance(action.help, str):
                check(self, action)

        ArgumentParser._check_help = check_text  # type: ignore[attr-defined]
