"""Print the JSON Schema of a report.

Run ``python -m breakeven.report.schema > docs/schema/check.schema.json`` after a change of the
report's types.
"""

from __future__ import annotations

import sys

from breakeven.report._json import schema_document

if __name__ == "__main__":
    sys.stdout.write(schema_document().decode())
