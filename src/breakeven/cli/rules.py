"""``breakeven rules``: the rules on slow steps, and the page of one rule."""

from __future__ import annotations

import argparse

SUMMARY = "list what explain finds, or show the page of one rule"
DESCRIPTION = """\
List the rules behind the findings of check and explain. With a code or a cause,
show its page: what it finds, why it costs time, what was seen in public reports,
the fix with code before and after, and what the rule cannot see."""
USAGE = "rules [CODE|CAUSE] [--json]"
EXAMPLES = """\
examples:
  breakeven rules
  breakeven rules SYNC001
  breakeven rules sync_item --json"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``rules``."""
    parser.add_argument(
        "name",
        metavar="CODE|CAUSE",
        nargs="?",
        help="one rule in full, by its code or by the cause that it detects, in any case",
    )
    parser.add_argument("--json", action="store_true", help="print JSON; pages are Markdown")


def run(args: argparse.Namespace) -> int:
    """Show all rules or one of them."""
    # Imported here, since --help must not wait for the rules and rich.
    from breakeven.cli.output import print_sheets
    from breakeven.report import (
        all_rule_pages,
        find_rule_pages,
        rule_document,
        rules_document,
        stored_rules,
    )

    if args.name is None:
        pages = all_rule_pages()
        documents = [rules_document(pages)]
    else:
        pages = find_rule_pages(args.name)
        documents = list(map(rule_document, pages))
    print_sheets(stored_rules(pages), *documents, is_json=args.json)
    return 0
