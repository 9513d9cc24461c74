"""Python source, parsed: what a line is part of, what names stand for, where values go."""

from __future__ import annotations

import ast

import pytest

from breakeven.source import (
    LineEdits,
    NoEditError,
    SourceFile,
    SyntaxTree,
    blocks_of,
    dotted_name,
    headers_of,
    own_nodes,
    plain_name,
    reached_by,
    split_lines,
    statements_of,
    with_values,
    written_names,
    written_part,
)
from breakeven.trace import SourceText

SCRIPT = """\
import time as clock
from torch import nn
now = clock.perf_counter

def train(model, batches):
    total = 0.0
    for batch in batches:
        if batch.is_last:
            break
        loss = model(batch)
        total += loss.item()
        with clock.section("log"):
            print(total)
    else:
        print(-1.0)
    return total
"""


@pytest.fixture
def source() -> SourceFile:
    return SourceFile(SourceText(path="train.py", text=SCRIPT))


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


@pytest.mark.parametrize(
    ("text", "dotted", "plain"),
    [
        ("a.b.c", "a.b.c", "a.b.c"),
        ("a.b(1).c", "a.b.c", ""),
        ("a[0].b", "a.b", ""),
        ("(a + b).c", "c", ""),
        ("1", "", ""),
    ],
)
def test_names_are_told_with_calls_and_indices_left_out_or_not_at_all(
    text: str, dotted: str, plain: str
) -> None:
    assert (dotted_name(expression(text)), plain_name(expression(text))) == (dotted, plain)


def test_a_compound_statement_has_headers_and_blocks_in_the_order_in_which_they_run() -> None:
    tried, matched, with_ = ast.parse(
        "try:\n    a\nexcept E:\n    b\nelse:\n    c\nfinally:\n    d\n"
        "match x:\n    case 1:\n        e\n    case _:\n        f\n"
        "with y, z:\n    g\n"
    ).body

    def shown(node: ast.AST) -> list[str]:
        return [ast.unparse(one) for block in blocks_of(node) for one in block]

    assert shown(tried) == ["a", "b", "c", "d"]
    assert not headers_of(tried)
    assert (shown(matched), [*map(ast.unparse, headers_of(matched))]) == (["e", "f"], ["x"])
    assert (shown(with_), [*map(ast.unparse, headers_of(with_))]) == (["g"], ["y", "z"])
    assert blocks_of(expression("a if b else c")) == []


def test_lines_know_their_loops_function_and_calls(source: SourceFile) -> None:
    (loop,) = source.nodes(ast.For)
    (function,) = source.nodes(ast.FunctionDef)
    assert source.loops_around(10) == (loop,)
    assert source.loops_around(7) == ()  # its header
    assert source.function_around(10) is function
    assert source.scope_around(3) is source.tree
    assert [dotted_name(call.func) for call in source.calls_on(11)] == ["loss.item"]
    assert source.call_at(10, "model") is not None
    assert source.is_in_loop(next(source.calls("print")))


def test_imports_tell_what_a_name_stands_for(source: SourceFile) -> None:
    assert source.imports == {"clock": "time", "nn": "torch.nn"}
    assert [(one.name, ast.unparse(one.value)) for one in source.bindings[:2]] == [
        ("now", "clock.perf_counter"),
        ("total", "0.0"),
    ]


def test_a_file_that_python_cannot_parse_has_no_statements_and_magics_are_left_out() -> None:
    broken = SourceFile(SourceText(path="broken.py", text="def f(:"))
    notebook = SourceFile(SourceText(path="notebook.py", text="%matplotlib inline\nx = 1\n"))
    assert not list(broken.nodes(ast.stmt))
    assert [one.name for one in notebook.bindings] == ["x"]


def test_a_value_reaches_what_is_made_of_it_in_its_scope(source: SourceFile) -> None:
    reached = [ast.unparse(statement) for statement, _ in reached_by(source, 10)]
    assert reached == [
        "loss = model(batch)",
        "total += loss.item()",
        "print(total)",
        "return total",
    ]
    function = next(source.nodes(ast.FunctionDef))
    lines = [getattr(one, "lineno", 0) for one in statements_of(function)]
    assert lines == [6, 7, 8, 9, 10, 11, 12, 13, 15, 16]


def test_what_a_scope_runs_itself_leaves_its_functions_out() -> None:
    tree = ast.parse("f()\ndef g():\n    h()\nk(lambda: m())\n")
    assert {dotted_name(call.func) for call in own_nodes(tree, ast.Call)} == {"f", "k"}


def test_written_names_are_told_with_their_owners_and_parts() -> None:
    written = written_names(ast.parse("self.net.x = 1\nfor i, *rest in y: pass\nimport a.b\n"))
    assert written == {"self.net.x", "i", "rest", "a"}
    assert written_part(expression("loss(self.net)"), written) == "self.net"
    assert written_part(expression("loss(i.value)"), written) in ("i", "i.value")
    assert written_part(expression("lambda i: i + z"), written) == ""


def test_values_take_the_place_of_names_that_are_read() -> None:
    before = expression("f(x, g(x.y), lambda: x)")
    after = with_values(before, {"x": expression("a + b")})
    assert ast.unparse(after) == "f(a + b, g((a + b).y), lambda: a + b)"
    assert ast.unparse(before) == "f(x, g(x.y), lambda: x)"


def test_edits_leave_all_other_lines_as_they_are() -> None:
    text = "import  torch\r\nfor é in x :\r\n    f( é )  # why\r\n    # about g\r\n    g()\r\n"
    tree = ast.parse(text)
    loop = tree.body[1]
    assert isinstance(loop, ast.For)
    edits = LineEdits(split_lines(text))
    edits.insert_import(tree, "import breakeven\r\n", beside="torch")
    edits.replace(loop.body, loop.body[1], "step()\r\n")
    edits.insert_before(loop, "step = make()\r\n")
    assert edits.text() == (
        "import breakeven\r\nimport  torch\r\nstep = make()\r\nfor é in x :\r\n    step()\r\n"
    )


def test_arguments_are_added_where_a_call_and_a_function_have_them() -> None:
    text = "def run(a, é=1): pass\nrun( 1 , )\nrun()\n"
    tree = SyntaxTree(ast.parse(text))
    edits = LineEdits(split_lines(text))
    edits.insert_parameter(next(tree.nodes(ast.FunctionDef)).args, "step")
    for call in tree.nodes(ast.Call):
        edits.insert_argument(call, "step=step")
    assert edits.text() == "def run(a, é=1, *, step): pass\nrun( 1, step=step , )\nrun(step=step)\n"


def test_a_line_of_several_statements_is_not_changed() -> None:
    tree = ast.parse("a(); b()\n")
    with pytest.raises(NoEditError, match="line 1 holds more than one statement"):
        LineEdits(["a(); b()\n"]).replace(tree.body[:1], tree.body[0], "c()\n")
    with pytest.raises(NoEditError, match="carriage returns alone"):
        split_lines("a()\rb()\r")
