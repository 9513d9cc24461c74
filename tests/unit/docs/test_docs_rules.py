"""The documentation has the page of each rule, which lies beside the rules."""

from __future__ import annotations

from test_docs import DOCS, ROOT

from breakeven.report import all_rule_pages

PAGES = ROOT / "src" / "breakeven" / "advise" / "rules"


def test_each_page_is_that_of_a_rule_and_listed() -> None:
    pages = all_rule_pages()
    assert {path.stem for path in PAGES.glob("*.md")} == {page.code for page in pages}
    index = (DOCS / "rules" / "index.md").read_text("utf-8")
    for page in pages:
        link = f"[{page.code}](../../{(PAGES / page.code).relative_to(ROOT)}.md)"
        assert f"| {link} | `{page.cause}` | {page.title} |" in index


def test_the_list_is_in_the_navigation_and_a_hook_adds_the_pages() -> None:
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert "- rules/index.md" in config
    assert "hooks: [docs/rule_pages.py]" in config


def test_reading_the_report_leads_to_the_pages() -> None:
    assert "(rules/index.md)" in (DOCS / "reading-the-report.md").read_text("utf-8")
