"""Outputs of a report: in a terminal, as a page or charts, and as JSON with its schema."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from inspect import cleandoc
from io import StringIO
from typing import Any

import msgspec
from rich.console import Console

from breakeven.errors import BreakevenError, UsageError
from breakeven.report.document import Document
from breakeven.report.kinds import kind_of, kinds_by_schema
from breakeven.report.page import render_page, render_part, render_svg
from breakeven.report.terminal import render
from breakeven.report.text import printable, with_texts

_TEXT_COLUMNS = 100
_PAGES = (".html", ".htm")


def show(
    report: msgspec.Struct, console: Console, *, hints: Sequence[str] = (), **options: object
) -> None:
    """Write a report to a console, at the console's width.

    Args:
        report: The report of a command.
        console: The console; its size, colours and encoding are respected.
        hints: Closing lines with next actions.
        options: Further arguments of the kind's builder.
    """
    documents = documents_of(report, **options)
    for number, document in enumerate(documents, start=1):
        is_last = number == len(documents)
        render(document, console, hints=hints if is_last else ())
        if not is_last:
            console.line()


def documents_of(report: msgspec.Struct, **options: object) -> list[Document]:
    """Return the documents that a terminal shows below one another."""
    kind = kind_of(report)
    documents = list(kind.parts(report)) if kind.parts else []
    return [*documents, kind.build(report, **options)] if kind.build else documents


def html_part(report: msgspec.Struct) -> str:
    """Return a report as an HTML element for a notebook; its terminal text if it has no page."""
    kind = kind_of(report)
    if kind.build:
        return render_part(kind.build(report))
    text = StringIO()
    show(report, Console(file=text, width=_TEXT_COLUMNS, force_jupyter=False))
    return f"<pre>{html.escape(text.getvalue())}</pre>"


def ensure_chart_suffix(suffix: str) -> None:
    """Check that a page or an image has this suffix, in any case.

    Raises:
        UsageError: It has not.
    """
    if suffix.lower() not in (*_PAGES, ".svg"):
        raise UsageError(
            f"no chart is written as {printable(suffix, 40) or 'a file without suffix'}",
            hint="name a file that ends in .html or .svg",
        )


def chart_document(report: Any, suffix: str) -> bytes:
    """Return a report as the bytes of a file: an image of its charts, or a full page.

    Args:
        report: The report of a command.
        suffix: ``.svg`` or ``.html``, in any case.

    Raises:
        UsageError: The suffix is not supported, or not for this report.
        BreakevenError: There is nothing to draw.
    """
    ensure_chart_suffix(suffix)
    is_page = suffix.lower() in _PAGES
    kind = kind_of(report)
    if kind.build is None:
        raise UsageError(
            f"a report of breakeven {kind.command} is not written as a page or a chart",
            hint="breakeven report FILE shows it",
        )
    document = kind.build(report)
    if is_page:
        return render_page(document)
    if document.charts is None:
        raise UsageError(
            f"a report of breakeven {kind.command} has no chart",
            hint="name a file that ends in .html",
        )
    if not document.charts:
        raise BreakevenError(
            "there is no step time to draw", hint="breakeven report FILE shows all else"
        )
    return render_svg(document.charts, heading=report.target)


def to_json(report: msgspec.Struct, *, with_recording: bool = False) -> bytes:
    """Return a report as one indented JSON document in UTF-8, ending in a newline.

    Args:
        report: A report of any kind.
        with_recording: Whether to keep the recorded step, which is large, for a later `explain`.

    Raises:
        msgspec.ValidationError: The report breaks its own schema (a share above 1, a time that is
            not a number), so the document could not be read back.
    """
    kind = kind_of(report)
    if not with_recording and hasattr(report, "recording"):
        report = msgspec.structs.replace(report, recording=None)
    document = encode_document(kind.write(report))
    msgspec.json.decode(document, type=kind.stored)
    return document


def encode_document(value: object) -> bytes:
    """Return any value as an indented JSON document, ending in a newline.

    A non-UTF-8 byte of a file name reaches Python as a lone surrogate, which JSON cannot contain:
    it becomes U+FFFD.
    """
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(
            with_texts(
                msgspec.to_builtins(value),
                lambda text: text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"),
            )
        )
    return msgspec.json.format(encoded, indent=2) + b"\n"


def json_schema(name: str = "check") -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a document, with key descriptions from docstrings.

    Args:
        name: Name of its kind in `kinds_by_schema`.
    """
    kind = kinds_by_schema()[name]
    described = msgspec.json.schema(_with_open_recording(kind.stored))
    definitions: dict[str, Any] = described["$defs"]
    root = kind.stored.__name__
    for definition in definitions.values():
        # Move the ``Args`` of a type's docstring to the properties.
        summary, _, arguments = cleandoc(definition.get("description", "")).partition("\n\nArgs:\n")
        if summary:
            definition["description"] = summary
        # The first line of an argument is indented by four, its continuation lines by eight.
        for argument in re.split(r"^ {4}(?! )", arguments, flags=re.MULTILINE)[1:]:
            key, _, text = argument.partition(": ")
            definition["properties"][key]["description"] = " ".join(text.split())
    definitions[root]["properties"]["schema_version"] = {"const": kind.version}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:breakeven:schema:{name}:{kind.version}",
        "title": f"Report of breakeven {kind.command}",
        "description": kind.description,
        **described,
    }


def _with_open_recording(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return a document's type whose recorded step is any object: only breakeven reads it."""
    if "recording" not in kind.__struct_fields__:
        return kind
    fields: list[Any] = []
    for one in msgspec.structs.fields(kind):
        shown = dict[str, Any] | None if one.name == "recording" else one.type
        fields.append((one.name, shown, *(() if one.required else (one.default,))))
    documented = {"__doc__": kind.__doc__}
    return msgspec.defstruct(kind.__name__, fields, namespace=documented, kw_only=True)
