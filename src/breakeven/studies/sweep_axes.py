"""The axes of a sweep from ``--over``, and their values in the script's arguments."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from msgspec import structs

from breakeven.capture import LoaderUse
from breakeven.errors import UsageError
from breakeven.studies.runner import Change
from breakeven.verdict import AxisRole, AxisValue, SweepAxis

_MOST_VALUES = 10_000
# No machine has more threads; torch would try to start them all.
_MOST_THREADS = 1_024
# Largest whole number; JSON's are exact up to 2^53.
_LARGEST = 2**53

_ROLES = {
    "batch_size": AxisRole.BATCH_SIZE,
    "threads": AxisRole.THREADS,
    "num_devices": AxisRole.NUM_DEVICES,
}
_NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
_NUMBER = r"[-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?:([+*])({_NUMBER}))?")
# A number with leading zeros is a name, such as that of a file.
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_BRACE = re.compile(rf"\{{\{{|\}}\}}|\{{({_NAME})\}}|[{{}}]")

_HINT = (
    "write NAME=16..65536 (doubling), NAME=2..12+1 (steps of 1), NAME=1..1000*3 (times 3) or "
    "NAME=relu,tanh (listed); a range includes its end"
)


def parse_axis(text: str) -> SweepAxis:
    """Parse the description of an axis.

    ``batch_size=16..65536`` doubles, ``depth=2..12+1`` goes in steps, ``n=1..1000*3`` multiplies,
    ``act=relu,tanh`` lists. A range includes its end, even if no step reaches it. If both ends are
    whole, then a factor that is not whole gives values rounded to whole numbers.

    The name decides the role; `assign_roles` corrects it by the script's arguments.

    Raises:
        UsageError: If the text has another form, or if the axis is empty, descending, has a
            repeated value, or has more than 10,000 values.
    """
    name, equals, listed = (part.strip() for part in text.partition("="))
    if not equals or not re.fullmatch(_NAME, name):
        raise UsageError(f"{text!r} is no axis of a sweep", hint=_HINT)
    if not listed:
        raise UsageError(f"{text!r} has no values", hint=_HINT)
    if ".." in listed:
        values = _parse_range(listed, text)
    else:
        values = tuple(_parse_item(item.strip(), text) for item in listed.split(","))
    seen: set[AxisValue] = set()
    for value in values:
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise UsageError(f"{value} in {text!r} is too large", hint="take smaller numbers")
        if value in seen:
            raise UsageError(f"{text!r} has the value {value} twice", hint="list each value once")
        seen.add(value)
    return SweepAxis(name=name, role=_ROLES.get(name, AxisRole.ARGUMENT), values=values)


def assign_roles(axes: Sequence[SweepAxis], arguments: Sequence[str]) -> tuple[SweepAxis, ...]:
    """Return the axes with their roles for a script with these arguments.

    An axis whose ``{NAME}`` occurs in the arguments is the script's own, whatever its name.

    Args:
        axes: The parsed axes.
        arguments: Arguments of the script.

    Raises:
        UsageError: If an axis occurs twice or does not affect the script; if an argument has
            ``{NAME}`` without such an axis; or if the role does not allow a value.
    """
    if not axes:
        raise UsageError("a sweep needs at least one axis", hint=f"add --over: {_HINT}")
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"the axis {name} is given twice", hint="list its values in one")
    used = {found for argument in arguments for found in placeholders(argument)}
    for found in sorted(used - set(names)):
        raise UsageError(
            f"the arguments hold {{{found}}}, but there is no axis {found}",
            hint=f"add --over {found}=VALUES, or write {{{{{found}}}}} for the text itself",
        )
    num_points = math.prod(len(axis.values) for axis in axes)
    if num_points > _MOST_VALUES:
        raise UsageError(
            f"the grid has {num_points:,} points, more than {_MOST_VALUES:,}",
            hint="take fewer values of one of the axes",
        )
    return tuple(
        structs.replace(axis, role=AxisRole.ARGUMENT) if axis.name in used else _own_axis(axis)
        for axis in axes
    )


def _own_axis(axis: SweepAxis) -> SweepAxis:
    """Check an axis that the arguments do not use, and return it with its role.

    Raises:
        UsageError: If its name or a value is invalid.
    """
    if axis.name not in _ROLES:
        raise UsageError(
            f"the axis {axis.name} changes nothing: {{{axis.name}}} is not in the arguments",
            hint=f"pass it to the script: -- --{axis.name} {{{axis.name}}}",
        )
    for value in axis.values:
        if not isinstance(value, int) or value < 1:
            raise UsageError(
                f"{axis.name} is a positive whole number, not {value}",
                hint="for an option of the script of that name, pass "
                f"{{{axis.name}}} to it after --",
            )
        if _ROLES[axis.name] is not AxisRole.BATCH_SIZE and value > _MOST_THREADS:
            raise UsageError(
                f"{axis.name} of {value} is more than {_MOST_THREADS}", hint="take fewer"
            )
    return structs.replace(axis, role=_ROLES[axis.name])


def placeholders(argument: str) -> tuple[str, ...]:
    """Return the names in braces in an argument.

    Raises:
        UsageError: If a single brace neither belongs to a name nor is doubled.
    """
    found: list[str] = []
    for match in _BRACE.finditer(argument):
        if match[1]:
            found.append(match[1])
        elif match[0] in ("{", "}"):
            raise UsageError(
                f"a single {match[0]!r} in the argument {argument!r}",
                hint="write {NAME} for the value of an axis, and {{ or }} for a brace itself",
            )
    return tuple(found)


def fill_arguments(arguments: Sequence[str], settings: Mapping[str, AxisValue]) -> tuple[str, ...]:
    """Return the arguments with ``{NAME}`` replaced by the value of the axis.

    Args:
        arguments: The arguments, checked by `assign_roles`.
        settings: Value by axis.
    """

    def fill(match: re.Match[str]) -> str:
        return str(settings[match[1]]) if match[1] else match[0][0]

    return tuple(_BRACE.sub(fill, argument) for argument in arguments)


def _parse_item(item: str, text: str) -> AxisValue:
    if not item:
        raise UsageError(f"{text!r} has an empty value", hint=_HINT)
    try:
        number = float(item)
    except ValueError:
        return item
    if not math.isfinite(number):
        raise UsageError(f"{item!r} in {text!r} is no finite number", hint=_HINT)
    if _WHOLE.fullmatch(item):
        return int(item)
    return number if re.fullmatch(_NUMBER, item) and not re.match(r"[-+]?0[0-9]", item) else item


def _parse_range(listed: str, text: str) -> tuple[AxisValue, ...]:
    found = _RANGE.fullmatch(listed)
    if found is None:
        raise UsageError(f"{listed!r} in {text!r} is no range", hint=_HINT)
    numbers = (found[1], found[2], found[4] or "2")
    # Check as floats, since Decimal refuses exponents that it cannot hold.
    if not all(math.isfinite(float(number)) for number in numbers):
        raise UsageError(f"{text!r} holds a number that is too large", hint=_HINT)
    # Keep the decimals as written; use 0 if a number underflows as a float.
    start, end, step = (Decimal(one) if float(one) else Decimal(0) for one in numbers)
    is_linear = found[3] == "+"
    if start > end:
        raise UsageError(
            f"{text!r} goes down from {found[1]} to {found[2]}",
            hint="write the smaller end first, or list the values",
        )
    if is_linear and step <= 0:
        raise UsageError(f"{text!r} has a step of {step}", hint="a step is above 0")
    if not is_linear and (step <= 1 or start <= 0):
        what = f"a factor of {step}" if step <= 1 else f"a start of {start}"
        raise UsageError(
            f"{text!r} has {what}",
            hint="a range that multiplies starts above 0, by a factor above 1",
        )
    values: list[Decimal] = []
    value = start
    while value < end:
        values.append(value)
        if len(values) >= _MOST_VALUES:  # the end is one more
            raise UsageError(
                f"{text!r} has more than {_MOST_VALUES:,} values", hint="take a larger step"
            )
        value = start + len(values) * step if is_linear else value * step
    values.append(end)
    are_ends_whole = all(_WHOLE.fullmatch(found[i]) for i in (1, 2))
    if are_ends_whole and (not is_linear or step == step.to_integral_value()):
        return tuple(dict.fromkeys(round(value) for value in values))
    return tuple(float(value) for value in values)


Settings = Mapping[str, AxisValue]
# Settings as a key: the values in the order of some axes.
Values = tuple[AxisValue, ...]

# Neither changes the recorded step: threads affect the CPU, and every GPU does the same step.
_NOT_RECORDED = (AxisRole.THREADS, AxisRole.NUM_DEVICES)


@dataclass(frozen=True, slots=True)
class Grid:
    """Points of a sweep, and how their settings change the script.

    Args:
        axes: The axes with their roles.
        arguments: Arguments of the script, with ``{NAME}`` for the value of an axis.
    """

    axes: tuple[SweepAxis, ...]
    arguments: tuple[str, ...] = ()

    @property
    def recorded_axes(self) -> tuple[SweepAxis, ...]:
        """Return the axes that affect the step itself."""
        return tuple(axis for axis in self.axes if axis.role not in _NOT_RECORDED)

    @property
    def timed_axes(self) -> tuple[SweepAxis, ...]:
        """Return the axes that affect the time on a CPU."""
        return tuple(axis for axis in self.axes if axis.role is not AxisRole.NUM_DEVICES)

    def axis_of(self, role: AxisRole) -> SweepAxis | None:
        """Return the axis of a role that only one can have; None if it is not swept."""
        return next((axis for axis in self.axes if axis.role is role), None)

    def with_batch_size(self, size: int) -> Grid:
        """Return the grid with one more batch size."""
        axes = (
            structs.replace(axis, values=tuple(sorted({*axis.values, size})))
            if axis.role is AxisRole.BATCH_SIZE
            else axis
            for axis in self.axes
        )
        return replace(self, axes=tuple(axes))

    def change_at(self, settings: Settings, loader: LoaderUse | None) -> Change:
        """Return the changes to the script at a point.

        Args:
            settings: Value of every axis of the arguments. Without a batch size or threads, the
                script's own apply.
            loader: The script's own loader, if its batch size is to be changed.
        """
        threads, size = self.axis_of(AxisRole.THREADS), self.axis_of(AxisRole.BATCH_SIZE)
        change = Change(
            arguments=fill_arguments(self.arguments, settings),
            num_threads=int(settings.get(threads.name, 0)) if threads else 0,
        )
        if size is None or loader is None or size.name not in settings:
            return change
        wanted = int(settings[size.name])
        if wanted == loader.batch_size:
            return change
        return replace(change, old_batch_size=loader.batch_size, new_batch_size=wanted)


def points_of(axes: Sequence[SweepAxis]) -> list[dict[str, AxisValue]]:
    """Return the settings of every point; the last axis varies fastest."""
    names = [axis.name for axis in axes]
    return [
        dict(zip(names, values, strict=True))
        for values in itertools.product(*(axis.values for axis in axes))
    ]


def values_at(settings: Settings, axes: Iterable[SweepAxis]) -> Values:
    """Return the values of some axes, as a key."""
    return tuple(settings[axis.name] for axis in axes)


def describe(settings: Settings) -> str:
    """Return settings in words."""
    return ", ".join(f"{name} {value}" for name, value in settings.items())
