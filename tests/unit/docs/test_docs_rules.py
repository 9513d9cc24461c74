"""The documentation has a page for each rule, of the same text as ``breakeven rules``."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_docs import DOCS, GENERATOR, ROOT

from breakeven.report import RulePage, all_rule_pages

RULES = DOCS / "rules"


@pytest.mark.parametrize("page", all_rule_pages(), ids=lambda page: page.code)
def test_each_rule_has_its_page_and_is_listed(page: RulePage) -> None:
    text = (RULES / f"{page.code}.md").read_text("utf-8")
    assert text.endswith(page.markdown), "run: python docs/generate.py"
    index = (RULES / "index.md").read_text("utf-8")
    assert f"| [{page.code}]({page.code}.md) | `{page.cause}` | {page.title} |" in index


def test_there_is_no_page_without_a_rule() -> None:
    codes = {page.code for page in all_rule_pages()}
    assert {path.stem for path in RULES.glob("*.md")} == {"index", *codes}


def test_a_page_of_a_rule_that_is_gone_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GENERATOR, "DOCS", tmp_path)
    monkeypatch.setattr(GENERATOR, "PAGES", {})
    assert GENERATOR.main([]) == 0
    gone = tmp_path / "rules" / "GONE001.md"
    gone.write_text("a rule of long ago", "utf-8")
    assert GENERATOR.outdated_pages() == {"rules/GONE001.md": None}
    assert GENERATOR.main(["--check"]) == 1
    assert gone.exists()
    assert GENERATOR.main([]) == 0
    assert not gone.exists()
    assert GENERATOR.main(["--check"]) == 0


def test_the_list_is_in_the_navigation_and_a_hook_adds_the_pages() -> None:
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert "- rules/index.md" in config
    assert "hooks: [docs/rule_pages.py]" in config


def test_reading_the_report_leads_to_the_pages() -> None:
    assert "(rules/index.md)" in (DOCS / "reading-the-report.md").read_text("utf-8")
