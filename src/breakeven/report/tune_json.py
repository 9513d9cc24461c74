"""The JSON document of a tuning, and the schema that describes it."""

from __future__ import annotations

from typing import Any

from breakeven.report.json import described_schema, encode_readable
from breakeven.verdict import TUNE_SCHEMA_VERSION, TuneReport

TUNE_SCHEMA_ID = f"urn:breakeven:schema:tune:{TUNE_SCHEMA_VERSION}"


def tune_to_json(report: TuneReport) -> bytes:
    """Return ``report`` as one indented JSON document in UTF-8, ending in a newline.

    Raises:
        msgspec.ValidationError: The report breaks its own schema (a time that is not a number),
            so the document could never be read back.
    """
    return encode_readable(report)


def tune_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of what ``tune_to_json`` gives."""
    return described_schema(
        TuneReport,
        schema_id=TUNE_SCHEMA_ID,
        version=TUNE_SCHEMA_VERSION,
        title="Report of breakeven tune",
        description=(
            "What `breakeven tune --json` prints. Times are in nanoseconds; low and high bound a "
            "95 % interval of the ratio of two step times."
        ),
    )
