"""The JSON document of an explanation, and the schema that describes it."""

from __future__ import annotations

from typing import Any

import msgspec

from breakeven.report.json import described_schema, encode_document
from breakeven.verdict import EXPLAIN_SCHEMA_VERSION, ExplainReport

EXPLAIN_SCHEMA_ID = f"urn:breakeven:schema:explain:{EXPLAIN_SCHEMA_VERSION}"


def explanation_json(report: ExplainReport, *, with_recording: bool = False) -> bytes:
    """Return ``report`` as one indented JSON document in UTF-8, ending in a newline.

    Args:
        report: The explanation.
        with_recording: Keep the recorded step, which is large: for files that are explained later.

    Raises:
        msgspec.ValidationError: The report breaks its own schema, so the document could never be
            read back.
    """
    if not with_recording:
        report = msgspec.structs.replace(report, recording=None)
    document = encode_document(report)
    msgspec.json.decode(document, type=ExplainReport)
    return document


def explanation_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of what ``explanation_json`` gives."""
    return described_schema(
        ExplainReport,
        schema_id=EXPLAIN_SCHEMA_ID,
        version=EXPLAIN_SCHEMA_VERSION,
        title="Report of breakeven explain",
        description=(
            "What `breakeven explain --json` prints. Times are in nanoseconds, sizes in bytes, "
            "shares between 0 and 1; low and high bound a 90 % interval."
        ),
    )
