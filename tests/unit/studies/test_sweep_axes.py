from __future__ import annotations

import pytest

from breakeven.errors import UsageError
from breakeven.studies.sweep_axes import Grid, assign_roles, fill_arguments, parse_axis
from breakeven.verdict import AxisRole


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("batch_size=16..128", (16, 32, 64, 128)),
        ("batch_size=16..100", (16, 32, 64, 100)),
        ("depth=2..6+1", (2, 3, 4, 5, 6)),
        ("depth=2..6+3", (2, 5, 6)),
        ("n=1..30*3", (1, 3, 9, 27, 30)),
        ("n=1..10*1.5", (1, 2, 3, 5, 8, 10)),
        ("x=0..0.5+0.1", (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)),
        ("x=0.1..0.4", (0.1, 0.2, 0.4)),
        ("k=-3..3+3", (-3, 0, 3)),
        ("k=5..5", (5,)),
        ("threads=2,1", (2, 1)),
        ("lr=0.1,1e-3", (0.1, 0.001)),
        ("act=relu, tanh", ("relu", "tanh")),
        ("part=007,08.5", ("007", "08.5")),
    ],
)
def test_values_of_an_axis(text: str, values: tuple[object, ...]) -> None:
    axis = parse_axis(text)
    assert axis.values == values
    assert [type(value) for value in axis.values] == [type(value) for value in values]
    assert axis.name == text.split("=")[0]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "no axis"),
        ("batch_size", "no axis"),
        ("=1,2", "no axis"),
        ("a b=1,2", "no axis"),
        ("n=", "no values"),
        ("n=1,,2", "empty"),
        ("n=nan,1", "finite"),
        ("n=1..inf", "no range"),
        ("n=1..nan", "no range"),
        ("n=1..1e999", "too large"),
        ("n=1..1e99999999999999999999", "too large"),
        ("n=1e-99999999999999999999..2", "start of 0"),
        (f"n={'9' * 5_000}", "finite"),
        ("n=8..2", "down"),
        ("n=1..5+0", "step"),
        ("n=1..5+-1", "step"),
        ("n=1..5*1", "factor"),
        ("n=0..8", "start"),
        ("n=1..100000+1", "10,000"),
        ("n=1..2*1.00000001", "10,000"),
        ("n=1,2,1", "twice"),
        ("n=1,1.0", "twice"),
        ("n=a,a", "twice"),
        ("n=1..2..3", "no range"),
        ("n=1,99999999999999999999", "too large"),
    ],
)
def test_text_that_is_no_axis_is_refused_with_the_text(text: str, word: str) -> None:
    with pytest.raises(UsageError, match=word) as caught:
        parse_axis(text)
    assert caught.value.hint
    assert repr(text) in caught.value.message or text.split("=")[1] in caught.value.message


def roles(*texts: str, arguments: tuple[str, ...] = ()) -> list[AxisRole]:
    return [axis.role for axis in assign_roles([parse_axis(t) for t in texts], arguments)]


def test_roles_follow_names_unless_the_script_has_the_option() -> None:
    texts = ("batch_size=1,2", "threads=1,2", "num_devices=1,2")
    own = [AxisRole.BATCH_SIZE, AxisRole.THREADS, AxisRole.NUM_DEVICES]
    assert roles(*texts) == own
    braces = tuple(f"--x={{{text.split('=')[0]}}}" for text in texts)
    assert roles(*texts, arguments=braces) == [AxisRole.ARGUMENT] * 3


@pytest.mark.parametrize(
    ("texts", "arguments", "word"),
    [
        ((), (), "at least one"),
        (("n=1,2", "n=3,4"), ("{n}",), "given twice"),
        (("n=1,2",), (), "changes nothing"),
        (("n=1,2",), ("{n}", "{m}"), "no axis m"),
        (("n=1,2",), ("{n}", '{"a": 1}'), "single '{'"),
        (("n=1,2",), ("{n}", "a}"), "single '}'"),
        (("threads=1,2.5",), (), "positive whole number"),
        (("batch_size=0,1",), (), "positive whole number"),
        (("num_devices=2,many",), (), "positive whole number"),
        (("threads=1,100000",), (), "more than"),
        (("a=1..200+1", "b=1..200+1"), ("{a}{b}",), "40,000 points"),
    ],
)
def test_axes_that_do_not_fit_the_arguments_are_refused(
    texts: tuple[str, ...], arguments: tuple[str, ...], word: str
) -> None:
    with pytest.raises(UsageError, match=word) as caught:
        roles(*texts, arguments=arguments)
    assert caught.value.hint


def test_names_in_braces_are_replaced_and_doubled_braces_are_not() -> None:
    arguments = ("--width={w}", "{w}x{h}", "{{w}}", '{{"a": {w}}}', "plain")
    filled = fill_arguments(arguments, {"w": 8, "h": 0.5})
    assert filled == ("--width=8", "8x0.5", "{w}", '{"a": 8}', "plain")


@pytest.mark.parametrize(
    ("over", "values"),
    [
        ("batch_size=39,200", (39, 100, 200)),
        ("batch_size=16..64", (16, 32, 64, 100)),
        ("batch_size=100", (100,)),
    ],
)
def test_the_scripts_own_size_joins_the_batch_sizes_alone(
    over: str, values: tuple[int, ...]
) -> None:
    axes = assign_roles([parse_axis("threads=2,1"), parse_axis(over)], ())
    threads, sizes = Grid(axes).with_batch_size(100).axes
    assert (threads.values, sizes.values) == ((2, 1), values)
