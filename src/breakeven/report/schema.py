"""Print the JSON Schema of a document.

After a change of a document's types, run
``python -m breakeven.report.schema check > docs/schema/check.schema.json``, with the name of that
document.
"""

from __future__ import annotations

import argparse
import sys

from breakeven.report.kinds import kinds_by_schema
from breakeven.report.shown import encode_document, json_schema

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print the JSON Schema of a document.")
    parser.add_argument("document", nargs="?", choices=kinds_by_schema(), default="check")
    schema = json_schema(parser.parse_args().document)
    sys.stdout.write(encode_document(schema).decode())
