"""A hook of mkdocs: every page of docs/rules is in the navigation, by code."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Add the page of each rule to the section that holds their list."""
    folder = Path(config["docs_dir"]) / "rules"
    codes = sorted(page.stem for page in folder.glob("*.md") if page.stem != "index")
    rules = next(section["Rules"] for section in config["nav"] if "Rules" in section)
    rules += [{code: f"rules/{code}.md"} for code in codes]
    return config
