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
        assert f"| [{page.code}]({page.code}.md) | {page.title} | `{page.cause}` |" in index


def test_the_site_includes_the_page_of_each_rule() -> None:
    for page in PAGES.glob("*.md"):
        included = f'--8<-- "{page.relative_to(ROOT).as_posix()}"'
        assert included in (DOCS / "rules" / page.name).read_text("utf-8").splitlines()
    assert "rules/index.md" in (ROOT / "mkdocs.yml").read_text("utf-8")


def test_reading_the_report_leads_to_the_pages() -> None:
    assert "(rules/index.md)" in (DOCS / "reading-the-report.md").read_text("utf-8")
