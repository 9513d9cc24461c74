"""The fix for a read is that of what the script uses the value for."""

from __future__ import annotations

from textwrap import dedent

import pytest

from breakeven.advise.rule import Match
from breakeven.advise.rules.sync import use_of
from breakeven.source import SourceFile
from breakeven.trace import Event, SourceText, Sync
from factories.cases import FILE, made_up_case, marked, rule_of
from factories.steps import at, op

ALL_AT_ONCE = "read all of them at once before the loop: .tolist()"

SLICES = """
    for i in range(count):
        x0, x1 = left[i].item(), right[i].item()  # here
        if x0 < 0 or x1 > width:
            x0, x1 = x0 + edge, x1 + edge
        pieces.append(picture[:, x0:x1])
"""
LOGS = """
    for i in range(count):
        total += losses[i].item()  # here
"""


@pytest.mark.parametrize(
    ("use", "source"),
    [
        ("slice", SLICES),
        ("slice", "n = lengths.max().item()  # here\nx = x[:, :n]"),
        ("slice", "x = x[:, : lengths.max().item()]  # here"),
        ("slice", "for t in range(int(lengths.max())):  # here\n    step(t)"),
        ("slice", "n = int(lengths.sum())  # here\nout = torch.zeros(n, 4)"),
        ("index", "row = table[i.item()]  # here"),
        ("index", "k = labels[0].item()  # here\ncounts[k] += 1"),
        ("branch", "if loss.item() > 10:  # here\n    stop()"),
        ("branch", "gap = error.item()  # here\nwhile gap > 0.1:\n    gap = gap / 2"),
        ("branch", "value = 1.0 if loss.item() > 1 else 0.0  # here"),
        ("branch", "found = [i for i in ids if heads[i].item() > 0]  # here"),
        ("limit", "x = torch.clamp(x, max=limit.item())  # here"),
        ("log", LOGS),
        ("log", "print(f'loss {loss.item():.3f}')  # here"),
        ("log", "value = loss.item()  # here\nhistory.append(value)"),
        ("log", "bar.set_postfix(loss=loss.item())  # here"),
        ("log", "text = f'{loss.item():.3f}'  # here\nif step % 100 == 0:\n    print(text)"),
        # What is sliced or indexed is read, and does not steer.
        ("log", "print(losses[0].item(), names[3:])  # here"),
        ("log", "history.append(loss.item())  # here\nprint(history[-10:])"),
        ("", "learn(loss.item())  # here"),
    ],
)
def test_a_value_is_used_for(use: str, source: str) -> None:
    (line,) = marked(source)

    assert use_of(SourceFile(SourceText(path=FILE, text=dedent(source))), line) == use


def test_a_tensor_as_an_index_is_read_without_a_call() -> None:
    source = SourceFile(SourceText(path=FILE, text="x = x[:n]"))

    assert use_of(source, 1, is_index=True) == "slice"
    assert use_of(source, 1) == ""


@pytest.mark.parametrize(
    ("num_reads", "source", "begins"),
    [
        (384, SLICES, ALL_AT_ONCE),
        (2, SLICES, "work out sizes and limits of slices on the CPU"),
        (384, "for i in ids:\n    use(x[i].item())  # here", ALL_AT_ONCE),
        (1, "use(x.item())  # here", "keep the value on the GPU (total += loss.detach())"),
        (384, LOGS, "keep the value on the GPU (total += loss.detach())"),
        (1, "row = table[i.item()]  # here", "index with the tensor itself"),
        (384, "for i in ids:\n    row = table[i.item()]  # here", "index with the whole tensor"),
    ],
)
def test_a_number_that_is_read(num_reads: int, source: str, begins: str) -> None:
    (found,) = detected("SYNC001", source, "item", num_bytes=4, num_reads=num_reads)

    assert found.fix.startswith(begins)


def test_a_tensor_and_a_branch_that_are_read() -> None:
    trees = (
        "for i in range(50):\n    heads = head[i].tolist()  # here\n    trees.append(tree(heads))"
    )
    (rows,) = detected("SYNC004", trees, "tolist", num_bytes=400, num_reads=50)
    test = "for i in range(50):\n    if subject[i] == 0:  # here\n        add(i)"
    (many,) = detected("SYNC005", test, "bool", num_bytes=1, num_reads=50)
    (one,) = detected("SYNC005", "if mask.any():  # here\n    skip()", "bool", 1, num_reads=1)

    assert rows.fix == ALL_AT_ONCE
    assert many.fix == f"{ALL_AT_ONCE}; or decide for all of them at once with torch.where"
    assert one.fix == "decide on the GPU with torch.where, or test every n-th step"


def detected(
    code: str, source: str, kind: str, num_bytes: int, *, num_reads: int
) -> tuple[Match, ...]:
    (line,) = marked(source)
    read = Sync(kind=kind, num_bytes=num_bytes, location=at(line))
    events: list[Event] = [event for _ in range(num_reads) for event in (op(100), read)]
    return rule_of(code).detect(made_up_case(*events, source=source))
