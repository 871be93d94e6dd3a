"""Options of commands, each declared once: a field of a dataclass with everything there is to say about it.

Command-line parsers (:mod:`cli.parser`), sections of configuration files (:func:`read_section`), the tables of
the page of commands, and the keys of resumed work (:func:`text_settings`) are made from these fields.
"""

import dataclasses
import difflib
import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import digest

T = TypeVar("T")

TEXT, SPEED, NOTHING = "text", "speed", "nothing"
"""What an option may change: what is computed, only how fast, or neither (places, messages)."""

OWN, NEW, TABLE, PAGE = "own", "new", "table", "page"
SCORES, FIGURES, EXPLANATION = "scores", "figures", "explanation"
"""What may stand where an output is written: the command decides; nothing; or a file of the same kind that this
package wrote: a table of counts, a page of ``lasformer report``, or the JSON of the same command."""


SAMPLES = 1000
"""Samples of a bootstrap, unless the option gives their number."""


class Spec(NamedTuple):
    """An option, apart from its name, type and default, which are the field's."""

    help: str = ""  # text of `--help`; the default is appended unless it is empty or the text names one
    changes: str = TEXT  # one of `TEXT`, `SPEED` and `NOTHING`
    positional: bool = False  # whether it is an argument without a name
    short: str = ""  # further name of one letter, such as `-o`
    flag: str = ""  # name on the command line, if it differs from the field's
    # possible values, or a function that returns them
    choices: Sequence[Any] | Callable[[], Sequence[Any]] | None = None
    values: Sequence[Any] | Callable[[], Sequence[Any]] | None = None  # the same, but the help does not list them
    metavar: str | tuple[str, ...] | None = None  # placeholder for the value
    # minimum, above, maximum: limits of a number; `above` is exclusive
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    append: bool = False  # whether each value needs the option again
    number: int = 0  # how many values an option with several has; 0 for any number
    bare: Any = None  # value if the option is given without one
    read: Callable[[str], Any] | None = None  # function that reads the value, instead of its type
    writes: str = ""  # for an output, what may stand in its place, see `OWN`; empty for others
    place: bool = False  # whether a value that is no `Path` names a file
    apart: bool = False  # whether the command itself compares what is named (a model, a folder, a memory), for its key
    rest: bool = False  # whether it is what follows `--`
    given: bool = False  # whether it is the names of the options that were given


def fairseq_option(default: Any, help: str) -> Any:
    """Return a field of one of fairseq's dataclasses, which makes a flag of it."""
    return dataclasses.field(default=default, metadata={"help": help})


def option(default: Any = dataclasses.MISSING, help: str = "", **spec: Any) -> Any:
    """Return the field of an option; without a default, it is required. See :class:`Spec`.

    An output's place changes nothing, unless ``changes`` says otherwise.
    """
    spec.setdefault("changes", NOTHING if spec.get("writes") else TEXT)
    return dataclasses.field(default=default, metadata={"option": Spec(help, **spec)})


def argument(help: str = "", default: Any = dataclasses.MISSING, **spec: Any) -> Any:
    """Return the field of an argument without a name. See :class:`Spec`."""
    return option(default, help, positional=True, **spec)


def following(help: str) -> Any:
    """Return the field of the words after ``--``."""
    return option((), help, rest=True)


def given() -> Any:
    """Return the field of the names of all options that were given, for commands with several sets of defaults."""
    return option((), given=True, changes=NOTHING)


class Option(NamedTuple):
    """An option with its name and type."""

    name: str
    base: Any  # type of a value, or of each of several
    many: bool  # whether it has several values
    default: Any  # `dataclasses.MISSING` if it is required
    spec: Spec

    @property
    def flag(self) -> str:
        return self.name if self.spec.positional else self.spec.flag or f"--{self.name.replace('_', '-')}"

    @property
    def choices(self) -> Sequence[Any] | None:
        """The possible values that the help lists."""
        return self.spec.choices() if callable(self.spec.choices) else self.spec.choices

    @property
    def values(self) -> Sequence[Any] | None:
        """The possible values."""
        return self.spec.values() if callable(self.spec.values) else self.spec.values or self.choices

    @property
    def help(self) -> str:
        if isinstance(self.default, bool) or self.default in (dataclasses.MISSING, None, (), ""):
            return self.spec.help
        if "default" in self.spec.help:
            return self.spec.help
        return f"{self.spec.help} (default: {self.default})" if self.spec.help else f"default: {self.default}"

    def check(self, value: Any, name: str = "") -> None:
        """Refuse an impossible value.

        Args:
            name: what the message calls the option, instead of its name on the command line.

        Raises:
            InputError: it is none of the possible ones, or beyond the limits.
        """
        if value is None or self.many:
            return
        name, values = name or self.flag, self.values
        if values is not None and value not in values:
            raise InputError(f"{name} {value}: expected one of {', '.join(map(str, values))}")
        low, above, high = self.spec.minimum, self.spec.above, self.spec.maximum
        words = [f"at least {low:g}"] if low is not None else [f"more than {above:g}"] if above is not None else []
        words += [f"at most {high:g}"] if high is not None else []
        if words and not (
            math.isfinite(value)
            and (low is None or value >= low)
            and (above is None or value > above)
            and (high is None or value <= high)
        ):
            raise InputError(f"{name} {value}: expected {' and '.join(words)}")


def options_of(cls: type) -> list[Option]:
    """Return the options that a dataclass declares: its own first, then those of its bases."""
    options: dict[str, Option] = {}
    hints = get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for base in cls.__mro__:
        for name in inspect.get_annotations(base):
            field = fields.get(name)
            if field is None or name in options or "option" not in field.metadata:
                continue
            kind, many = hints[name], False
            if isinstance(kind, types.UnionType):
                (kind,) = (one for one in get_args(kind) if one is not types.NoneType)
            if get_origin(kind) is tuple:
                kind, many = get_args(kind)[0], True
            options[name] = Option(name, kind, many, field.default, field.metadata["option"])
    return list(options.values())


def part(cls: type[T], options: Any) -> T:
    """Return the options of one of the classes that a command's are made of."""
    return cls(**{one.name: getattr(options, one.name) for one in options_of(cls)})


def check(options: Any) -> None:
    """Refuse impossible values.

    Raises:
        InputError: one is; the message names the option.
    """
    for one in options_of(type(options)):
        one.check(getattr(options, one.name))


def text_settings(options: Any) -> dict[str, object]:
    """Return the values of all options that what is computed depends on, of files the SHA-256 of their content.

    Raises:
        InputError: a file cannot be read.
    """
    values: dict[str, object] = {}
    for one in options_of(type(options)):
        value = getattr(options, one.name)
        if one.spec.changes == TEXT and not one.spec.apart:
            values[one.name] = digest(value) if isinstance(value, Path) else value
    return values


def read_section(cls: type, section: object, where: str, names: Sequence[str]) -> dict[str, Any]:
    """Read the values of some options from a section of a configuration file.

    Args:
        section: names, with underscores, and values; None is an empty section.
        where: file and section, for messages.
        names: the options that the section may contain.

    Raises:
        InputError: the section, a name or a value is not as expected.
    """
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise InputError(f"{where}: expected names and values")
    known_names(section, f"{where}.", names)
    declared = {one.name: one for one in options_of(cls)}
    return {name: _value(declared[name], value, f"{where}.{name}") for name, value in section.items()}


def known_names(values: Mapping[object, object], where: str, names: Sequence[str]) -> None:
    """Refuse unknown names.

    Raises:
        InputError: a name is unknown; the message has the one that is most like it.
    """
    for name in values:
        if name not in names:
            close = difflib.get_close_matches(str(name), names, 1)
            hint = f"; is {close[0]} meant?" if close else f"; known: {', '.join(names)}"
            raise InputError(f"{where}{name}: unknown{hint}")


def _value(declared: Option, value: object, where: str) -> Any:
    if value is None and declared.default in (None, dataclasses.MISSING):
        return None
    base = declared.base
    if base is bool:
        if not isinstance(value, bool):
            raise InputError(f"{where}: expected true or false")
        return value
    if isinstance(value, (bool, dict, list)) or value is None:
        raise InputError(f"{where}: expected a single value")
    try:
        read = base(value if base is not int else str(value))  # int(0.5) would be 0
    except (ValueError, OverflowError) as e:
        kinds = {int: "a whole number", float: "a number"}
        raise InputError(f"{where}: expected {kinds.get(base, 'text')}, not {value}") from e
    declared.check(read, where)
    return read
