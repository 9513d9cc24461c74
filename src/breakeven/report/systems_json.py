"""The JSON document of systems with published figures, and the schema that describes it."""

from __future__ import annotations

from typing import Any

import msgspec

from breakeven.report.json import described_schema, encode_document
from breakeven.verdict import SYSTEMS_SCHEMA_VERSION, SystemsReport

SYSTEMS_SCHEMA_ID = f"urn:breakeven:schema:workloads:{SYSTEMS_SCHEMA_VERSION}"


def systems_to_json(report: SystemsReport) -> bytes:
    """Return ``report`` as one indented JSON document in UTF-8, ending in a newline.

    Raises:
        msgspec.ValidationError: The report breaks its own schema, so the document could never be
            read back.
    """
    document = encode_document(report)
    msgspec.json.decode(document, type=SystemsReport)
    return document


def systems_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of what ``systems_to_json`` gives."""
    return described_schema(
        SystemsReport,
        schema_id=SYSTEMS_SCHEMA_ID,
        version=SYSTEMS_SCHEMA_VERSION,
        title="Report of breakeven workloads",
        description=(
            "What `breakeven workloads NAME --json` prints. Times are in nanoseconds, sizes in "
            "bytes, shares between 0 and 1; low and high bound a 90 % interval. The unit of a "
            "table's column is its kind; an estimate has the unit of its column, whatever its "
            "keys are called."
        ),
    )
