"""Print the JSON Schema of a document.

Run ``python -m breakeven.report.schema check > docs/schema/check.schema.json``, and the same with
``explain``, ``sweep``, ``tune``, ``validate`` and ``workloads``, after a change of the reports'
types.
"""

from __future__ import annotations

import argparse
import sys

from breakeven.report._explain_json import explanation_schema
from breakeven.report._json import encode_document, json_schema
from breakeven.report._sweep_json import sweep_schema
from breakeven.report._systems_json import systems_schema
from breakeven.report._tune_json import tune_schema
from breakeven.report._validation_json import validation_schema

SCHEMAS = {
    "check": json_schema,
    "explain": explanation_schema,
    "sweep": sweep_schema,
    "tune": tune_schema,
    "validate": validation_schema,
    "workloads": systems_schema,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print the JSON Schema of a command's document.")
    parser.add_argument("command", nargs="?", choices=tuple(SCHEMAS), default="check")
    schema = SCHEMAS[parser.parse_args().command]()
    sys.stdout.write(encode_document(schema).decode())
