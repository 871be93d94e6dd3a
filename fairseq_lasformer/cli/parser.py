"""Command-line parsers, made from the options that a dataclass declares (:mod:`fairseq_lasformer.base.options`)."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.options import Option, check, options_of


class HelpFormatter(argparse.HelpFormatter):
    """A formatter that names an option's value once, as Python's own does from 3.13 on."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


def declare(parser: argparse.ArgumentParser, cls: type) -> None:
    """Declare the options of a dataclass, without defaults: what is not given is not in the result."""
    for one in options_of(cls):
        if not (one.spec.rest or one.spec.given):
            names = [*([one.spec.short] if one.spec.short else []), one.flag]
            parser.add_argument(*names, **_arguments(one))
    parser.epilog = getattr(cls, "epilog", None) or next((o.help for o in options_of(cls) if o.spec.rest), None)


def _arguments(one: Option) -> dict[str, Any]:
    """Return the arguments of ``add_argument``."""
    spec = one.spec
    keywords: dict[str, Any] = {"help": one.help.replace("%", "%%")}
    if not spec.positional:
        needed = one.default is dataclasses.MISSING and not one.many
        keywords |= {"dest": one.name, "required": needed, "default": argparse.SUPPRESS}
    if one.base is bool:
        by_both = one.default is not False
        return keywords | {"action": argparse.BooleanOptionalAction if by_both else "store_true"}
    keywords |= {"type": spec.read or one.base, "metavar": spec.metavar, "choices": one.choices}
    if spec.append:
        return keywords | {"action": "append"}
    if spec.number:
        return keywords | {"nargs": spec.number}
    if spec.bare is not None:
        return keywords | {"nargs": "?", "const": spec.bare}
    if one.many:
        return keywords | {"nargs": "*" if spec.positional and one.default is not dataclasses.MISSING else "+"}
    if spec.positional and one.default is not dataclasses.MISSING:
        return keywords | {"nargs": "?"}
    return keywords


def make(cls: type, values: dict[str, Any], rest: Sequence[str] = ()) -> Any:
    """Return the options of a command.

    Args:
        values: those that were given; None and empty lists were not.
        rest: the words after ``--``.
    """
    declared = options_of(cls)
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items() if v is not None and v != []}
    named = tuple(one.name for one in declared if one.name in given)
    for one in declared:
        if one.spec.rest or one.spec.given:
            given[one.name] = tuple(rest) if one.spec.rest else named
        elif one.many and one.default is dataclasses.MISSING:
            given.setdefault(one.name, ())
    if rest and not any(one.spec.rest for one in declared):
        raise InputError("this command takes nothing after --")
    options = cls(**given)
    check(options)
    return options
