"""A hook of mkdocs: the site has the page of each rule, which lies beside the rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

PAGES = Path(__file__).parents[1] / "src" / "breakeven" / "advise" / "rules"


def on_config(config: Any) -> Any:
    """Add the page of each rule to the section that holds their list."""
    rules = next(section["Rules"] for section in config["nav"] if "Rules" in section)
    rules += [{page.stem: f"rules/{page.name}"} for page in sorted(PAGES.glob("*.md"))]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages themselves."""
    for page in PAGES.glob("*.md"):
        files.append(File.generated(config, f"rules/{page.name}", abs_src_path=str(page)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead from the list of rules to the pages of the site, not to those in the repository."""
    is_list = page.file.src_uri == "rules/index.md"
    return markdown.replace("../../src/breakeven/advise/rules/", "") if is_list else markdown
