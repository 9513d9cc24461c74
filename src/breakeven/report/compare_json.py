"""The JSON document of a comparison of two runs, and the schema that describes it."""

from __future__ import annotations

from typing import Any

from breakeven.report.json import described_schema, encode_document
from breakeven.verdict import COMPARISON_SCHEMA_VERSION, ComparisonReport

COMPARISON_SCHEMA_ID = f"urn:breakeven:schema:compare:{COMPARISON_SCHEMA_VERSION}"


def comparison_to_json(report: ComparisonReport) -> bytes:
    """Return ``report`` as one indented JSON document in UTF-8, ending in a newline."""
    return encode_document(report)


def comparison_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of what ``comparison_to_json`` gives."""
    return described_schema(
        ComparisonReport,
        schema_id=COMPARISON_SCHEMA_ID,
        version=COMPARISON_SCHEMA_VERSION,
        title="Report of breakeven compare",
        description=(
            "What `breakeven compare --json` prints. Times are in nanoseconds, ratios are those "
            "of the second run to the first; low and high bound a 90 % interval."
        ),
    )
