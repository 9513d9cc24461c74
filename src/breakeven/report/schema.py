"""Print the JSON Schema of a document.

Run ``python -m breakeven.report.schema check > docs/schema/check.schema.json``, and the same with
the names of the other documents, after a change of their types.
"""

from __future__ import annotations

import argparse
import sys

from breakeven.report.compare_json import comparison_schema
from breakeven.report.device_sheet import devices_schema
from breakeven.report.explain_json import explanation_schema
from breakeven.report.host_sheet import calibration_schema, hosts_schema
from breakeven.report.json import encode_document, json_schema
from breakeven.report.rule_sheet import rules_schema
from breakeven.report.sweep_json import sweep_schema
from breakeven.report.systems_json import systems_schema
from breakeven.report.tune_json import tune_schema
from breakeven.report.validation_json import validation_schema

# By the command that prints the document; `devices --hosts` prints one of its own.
SCHEMAS = {
    "calibrate": calibration_schema,
    "check": json_schema,
    "compare": comparison_schema,
    "devices": devices_schema,
    "explain": explanation_schema,
    "hosts": hosts_schema,
    "rules": rules_schema,
    "sweep": sweep_schema,
    "tune": tune_schema,
    "validate": validation_schema,
    "workloads": systems_schema,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print the JSON Schema of a document.")
    parser.add_argument("document", nargs="?", choices=tuple(SCHEMAS), default="check")
    schema = SCHEMAS[parser.parse_args().document]()
    sys.stdout.write(encode_document(schema).decode())
