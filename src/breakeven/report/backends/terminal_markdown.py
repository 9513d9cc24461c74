"""Markdown of a rule's page at a terminal, with blocks of code that take no more than their lines.

A module of its own, since rich's Markdown is slow to import and only pages need it.
"""

from __future__ import annotations

from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Markdown, MarkdownElement
from rich.syntax import Syntax


class _Code(CodeBlock):
    """A block of code on the terminal's own background, which rich would pad above and below."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Syntax(
            str(self.text).rstrip(),
            self.lexer_name,
            theme=self.theme,
            padding=(0, 2),
            word_wrap=True,
            background_color="default",
        )


class PageMarkdown(Markdown):
    """Markdown as a page shows it."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "fence": _Code,
        "code_block": _Code,
    }

    def __init__(self, text: str) -> None:
        super().__init__(text, code_theme="ansi_dark", hyperlinks=False)
