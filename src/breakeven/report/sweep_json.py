"""The JSON document of a sweep, and the schema that describes it."""

from __future__ import annotations

from typing import Any

from breakeven.report.json import described_schema, encode_readable
from breakeven.verdict import SWEEP_SCHEMA_VERSION, SweepReport

SWEEP_SCHEMA_ID = f"urn:breakeven:schema:sweep:{SWEEP_SCHEMA_VERSION}"


def sweep_to_json(report: SweepReport) -> bytes:
    """Return ``report`` as one indented JSON document in UTF-8, ending in a newline.

    Raises:
        msgspec.ValidationError: The report breaks its own schema (a time that is not a number),
            so the document could never be read back.
    """
    return encode_readable(report)


def sweep_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of what ``sweep_to_json`` gives."""
    return described_schema(
        SweepReport,
        schema_id=SWEEP_SCHEMA_ID,
        version=SWEEP_SCHEMA_VERSION,
        title="Report of breakeven sweep",
        description=(
            "What `breakeven sweep --json` prints. Times are in nanoseconds; low and high bound "
            "a 90 % interval."
        ),
    )
