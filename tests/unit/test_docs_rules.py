from __future__ import annotations

import pytest

from breakeven.doctor import Rule, all_rules


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)
def test_each_rule_is_in_the_list_of_findings(rule: Rule, pytestconfig: pytest.Config) -> None:
    page = (pytestconfig.rootpath / "docs" / "reading-the-report.md").read_text()
    summary = (type(rule).__doc__ or "").strip().splitlines()[0].removeprefix(f"{rule.code}: ")
    assert f"| `{rule.code}` | {summary} |" in page
