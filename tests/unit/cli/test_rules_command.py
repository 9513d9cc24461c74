"""``breakeven rules``: every rule has a page, found by code and by cause."""

from __future__ import annotations

import ast
import json
import re

import pytest

from breakeven.cli import main
from breakeven.errors import BreakevenError
from breakeven.report import all_rule_pages, find_rule_pages
from breakeven.report.rules import SECTIONS, RuleEntry


@pytest.mark.parametrize("page", all_rule_pages(), ids=lambda page: page.code)
def test_each_rule_has_a_whole_page_with_code_before_and_after(page: RuleEntry) -> None:
    sections = dict(page.sections)
    assert page.page.startswith(f"# {page.code}: {page.title}\n\nCause: `{page.cause}`\n\n## ")
    assert tuple(sections) == SECTIONS
    assert all(sections.values())
    assert page.title
    assert not page.title.endswith(".")
    blocks = re.findall(r"^```python\n(.*?)^```", sections["Fix"], re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 2, "code before and after"
    for block in blocks:
        ast.parse(block)


@pytest.mark.parametrize("name", ["SYNC001", "sync001", " Sync001 "])
def test_a_rule_is_found_by_its_code_in_any_case(name: str) -> None:
    assert [page.code for page in find_rule_pages(name)] == ["SYNC001"]


def test_a_cause_finds_all_its_rules() -> None:
    causes = [page.cause for page in all_rule_pages()]
    for cause in set(causes):
        assert len(find_rule_pages(cause.lower())) == causes.count(cause)


@pytest.mark.parametrize("name", ["SYNC01", "sync_itme"])
def test_a_misspelled_rule_is_an_error_that_names_close_ones(name: str) -> None:
    with pytest.raises(BreakevenError, match="there is no rule") as raised:
        find_rule_pages(name)
    assert "SYNC" in (raised.value.hint or "")


def test_the_list_names_every_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    shown = {line.split()[0] for line in lines if line and not line.startswith(" ")}
    assert {page.code for page in all_rule_pages()} <= shown


def test_a_narrow_list_keeps_codes_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["rules"]) == 0
    text = capsys.readouterr().out
    assert "LAUNCH001" in text
    assert "LAUNCH_FLOOR" not in text
    assert max(map(len, text.splitlines())) <= 40


def test_a_page_shows_every_section_and_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "SYNC001"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0].startswith("SYNC001  ")
    assert lines[1] == "cause SYNC_ITEM"
    assert all(name in lines for name in SECTIONS)
    assert "`" not in text
    (page,) = find_rule_pages("SYNC001")
    blocks = re.findall(r"```python\n(.*?)```", dict(page.sections)["Fix"], re.DOTALL)
    flat = " ".join(text.split())
    for block in blocks:
        assert " ".join(block.split()) in flat


def test_json_is_one_document_of_the_rules_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert [rule["code"] for rule in document["rules"]] == [page.code for page in all_rule_pages()]
    assert main(["rules", "sync_item", "--json"]) == 0
    (rule,) = json.loads(capsys.readouterr().out)["rules"]
    assert (rule["code"], rule["cause"]) == ("SYNC001", "SYNC_ITEM")
    assert rule["page"] == find_rule_pages("SYNC001")[0].page


def test_an_unknown_rule_ends_with_3_and_nothing_on_stdout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["rules", "\x1b[31mSYNC01"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "\x1b" not in captured.err
    assert r"there is no rule \x1b[31mSYNC01" in captured.err
    assert "breakeven rules" in captured.err
