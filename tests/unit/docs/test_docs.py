"""The documentation shows commands that exist, and pages that follow from the code."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

import breakeven
from breakeven.cli.dispatch import build_parser
from breakeven.verdict import Bound, Choice
from factories.loaded_scripts import load_script
from lab.own_data import own_data_markdown

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
# What a shell reads as the end of one command.
SHELL_OPERATORS = {"&&", "||", ";", "|", ">", ">>", "2>", "&"}


GENERATOR = load_script(DOCS / "generate.py", "docs_generate")


def _written_pages() -> list[Path]:
    pages = [
        page
        for page in sorted(DOCS.glob("*.md"))
        if not page.read_text("utf-8").startswith(GENERATOR.NOTICE)
    ]
    return [*pages, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


def _commands(text: str) -> list[list[str]]:
    """Return the breakeven commands of a page, in fenced blocks and in spans of code, as argv."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    blocks = [block for language, block in fenced if language in ("", "sh", "console")]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    outside = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    spans = [span.replace("\n", " ") for span in re.findall(r"`([^`]+)`", outside)]
    found: list[list[str]] = []
    for line in [*lines, *spans]:
        words = shlex.split(line, comments=True) if "breakeven " in line else []
        while words:
            end = next((i for i, word in enumerate(words) if word in SHELL_OPERATORS), len(words))
            if words[:1] == ["breakeven"]:
                found.append(words[1:end])
            words = words[end + 1 :]
    return found


def _documented_commands() -> list[tuple[str, list[str]]]:
    return [
        (page.name, command)
        for page in _written_pages()
        for command in _commands(page.read_text("utf-8"))
    ]


def test_commands_are_found_in_blocks_and_spans() -> None:
    text = (
        "Say `breakeven devices a100`, or `pip`.\n\n"
        "```sh\npip install . && breakeven check a.py --json > x.json\n"
        "breakeven check b.py \\\n  -- --lr 1 # slow\n```\n"
    )
    assert _commands(text) == [
        ["check", "a.py", "--json"],
        ["check", "b.py", "--", "--lr", "1"],
        ["devices", "a100"],
    ]


@pytest.mark.parametrize(
    "command",
    [command for _, command in _documented_commands()],
    ids=[f"{page}: {shlex.join(command)}" for page, command in _documented_commands()],
)
def test_a_documented_command_parses(command: list[str]) -> None:
    # What follows the dashes is the script's: the program cuts it off before it parses.
    own = command[: command.index("--")] if "--" in command else command
    if {"--help", "--version"} & set(own):
        with pytest.raises(SystemExit) as ended:
            build_parser().parse_args(own)
        assert ended.value.code == 0
    else:
        assert build_parser().parse_args(own).command == own[0]


def test_every_command_has_an_example_in_the_docs() -> None:
    shown = {command[0] for _, command in _documented_commands() if command}
    assert set(GENERATOR.command_parsers(build_parser())) <= shown


@pytest.mark.parametrize("name", sorted(GENERATOR.PAGES))
def test_a_generated_page_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text("utf-8") == GENERATOR.PAGES[name](), (
        "run: python docs/generate.py"
    )


def test_the_accuracy_page_shows_the_measured_data_of_the_repository() -> None:
    assert (DOCS / "accuracy.md").read_text("utf-8").endswith(own_data_markdown()), (
        "run: python -m lab.accuracy"
    )


def test_the_generated_pages_do_not_depend_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    narrow = GENERATOR.cli_page()
    monkeypatch.setenv("COLUMNS", "200")
    assert GENERATOR.cli_page() == narrow


@pytest.mark.parametrize("word", [*(bound.word for bound in Bound), *Choice])
def test_each_bound_and_choice_is_explained(word: str) -> None:
    text = (DOCS / "reading-the-report.md").read_text("utf-8")
    assert re.search(rf"^\| `{re.escape(word)}` \| \S", text, re.MULTILINE)


def test_every_page_is_in_the_navigation() -> None:
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    listed = set(re.findall(r"(?:: |- )((?:api/)?[\w-]+\.md)$", config, re.MULTILINE))
    pages = (*DOCS.glob("*.md"), *DOCS.glob("api/*.md"))
    assert listed == {page.relative_to(DOCS).as_posix() for page in pages}


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_links_to_pictures_pages_and_data_lead_to_files(page: Path) -> None:
    # The site's generator checks links to pages in Markdown and to their headings.
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    links = [link for link in links if not (page.parent / link).is_file()]
    assert set(links) <= set(GENERATOR.GALLERY if page.name == "gallery.md" else ())


def test_the_api_pages_name_things_that_exist() -> None:
    text = "".join(page.read_text("utf-8") for page in DOCS.glob("api/*.md"))
    names = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    assert len(names) == len(set(names))
    assert {name.rpartition(".")[2] for name in names} >= {*breakeven.__all__} - {"__version__"}
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name
