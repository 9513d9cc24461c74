"""Write the pages of the documentation that follow from the code.

``python docs/generate.py`` writes the pages of ``pages()``; with ``--check`` it changes nothing and
exits with 1 when a page on disk is out of date. The pages are kept in the repository, so that they
can be read, and their changes reviewed, without building anything.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

# argparse breaks lines at the width of the terminal: the pages must not depend on it.
HELP_COLUMNS = 80
DOCS = Path(__file__).resolve().parent
NOTICE = "<!-- Written by docs/generate.py; do not edit by hand. -->\n"

Schema = Mapping[str, Any]


def cli_page() -> str:
    """Return the reference of the command line: the help of every command."""
    from breakeven.cli.dispatch import build_parser

    parser = build_parser()
    with mock.patch.dict(os.environ, COLUMNS=str(HELP_COLUMNS)):
        lines = [
            NOTICE,
            "# Command line\n",
            "stdout is the answer, stderr is everything else. Exit codes are explained in "
            "[Reading the report](reading-the-report.md#exit-codes).\n",
            *_help_section("breakeven", parser),
        ]
        for name, command in command_parsers(parser).items():
            lines += _help_section(f"breakeven {name}", command)
    return "\n".join(lines)


def devices_page() -> str:
    """Return the catalogue as one table per vendor."""
    from breakeven.device import Precision, default_devices, load_catalogue
    from breakeven.units import BYTES_PER_GIB, FLOP_PER_TFLOP, format_bytes, format_digits

    catalogue = load_catalogue()
    default = ", ".join(device.name for device in default_devices())
    lines = [
        NOTICE,
        "# Devices\n",
        f"The {len(catalogue)} devices that a step can be predicted for, from their datasheets; "
        "`breakeven devices NAME` shows one in full, with the sources of its figures. Rates are "
        "dense peaks in TFLOP/s (a fused multiply-add is 2 FLOP); an empty cell means that the "
        "datasheet gives no rate, or that the hardware lacks the precision. Bandwidth is per "
        f"second. A check compares these unless told otherwise: {default}.\n",
    ]
    for vendor in dict.fromkeys(device.vendor for device in catalogue):
        lines += [
            f"## {_vendor_name(vendor)}\n",
            "| Device | Architecture | Year | Memory, GiB | Bandwidth | "
            + " | ".join(precision.value for precision in Precision)
            + " |",
            "| --- | --- " + "| ---: " * (3 + len(Precision)) + "|",
        ]
        for device in catalogue:
            if device.vendor != vendor:
                continue
            rates = (device.peak_flop_per_s.get(precision) for precision in Precision)
            cells = [
                device.name,
                device.architecture,
                str(device.release_year),
                format_digits(device.memory_bytes / BYTES_PER_GIB),
                format_bytes(device.memory_bytes_per_s),
                *("" if rate is None else format_digits(rate / FLOP_PER_TFLOP) for rate in rates),
            ]
            lines.append(_table_row(cells))
        lines.append("")
    return "\n".join(lines)


def json_page() -> str:
    """Return the keys of the JSON report of a check."""
    return _schema_page(
        "# JSON report\n",
        "check TARGET",
        "The unit of a number is in its key: `_ns` nanoseconds, `_bytes` bytes, `_fraction` a share"
        " between 0 and 1. `low` and `high` bound a 90 % interval. Every key is always there; what"
        " is unknown is null.\n",
    )


def explain_json_page() -> str:
    """Return the keys of the JSON report of an explanation."""
    return _schema_page(
        "# JSON of an explanation\n",
        "explain TARGET",
        "The unit of a number is in its key: `_ns` nanoseconds, `_bytes` bytes, `_fraction` a share"
        " between 0 and 1. `low` and `high` bound a 90 % interval. Every key is always there; what"
        " is unknown is null. `recording` is null but in a file written with `-o`, which"
        " `breakeven explain FILE` reads.\n",
    )


def operators_page() -> str:
    """Return the operators that a step is generated for, by the module that does."""
    import faststep.codegen.lowering  # noqa: F401 - it registers them
    from faststep.codegen import operators, pointwise

    by_module: dict[str, list[str]] = {}
    for name in sorted(operators.covered_operators()):
        home = operators.HANDLERS.get(name)
        by_module.setdefault(home.__module__ if home else pointwise.__name__, []).append(name)
    count = sum(map(len, by_module.values()))
    lines = [
        NOTICE,
        "# Operators of generated steps\n",
        f"The {count} operators of ATen that [a step in one call](fast-step.md#what-does-the-step) "
        "generates C for, forward and backward, in float32 and float64. Layers, losses and "
        "optimizers are made of them: torch decomposes a softmax, a normalisation or an LSTM. Some "
        "are covered in their usual forms alone; `step.not_generated` names what is not.\n",
        "| Kind | Operators |",
        "| --- | --- |",
    ]
    for module, names in sorted(by_module.items(), key=lambda one: -len(one[1])):
        said = (sys.modules[module].__doc__ or "").partition(".")[0]
        kind = " ".join(said.partition(":")[0].split())
        lines.append(_table_row([kind, ", ".join(f"`{name}`" for name in names)]))
    return "\n".join([*lines, ""])


def kernels_page() -> str:
    """Return how each family of kernels is known."""
    from breakeven.cost import PROXIES, Family, load_efficiencies
    from breakeven.device import load_catalogue
    from breakeven.units import format_percent

    def name_of(family: str, variant: str, units: str = "") -> str:
        words = " ".join([family.replace("_", " "), variant.replace("_", " ")]).strip()
        return f"{words}, {units} units" if units else words

    table = load_efficiencies()
    names = {device.id: device.name for device in load_catalogue()}
    errors = {(e.family, e.variant, e.arithmetic): e for e in table.held_out if not e.is_other_line}
    measured = {
        (entry.family, entry.variant, entry.arithmetic)
        for device in table.devices
        for entry in device.families
    }
    order = list(Family)
    lines = [
        NOTICE,
        "# Kernels\n",
        "How the time of each family of kernels is known. What a datasheet allows bounds all of "
        "them; what share of it a device reaches is fitted where single operators were measured, "
        "and carried over to other devices from the nearest ones. The errors are those of devices "
        "left out of the fit, with another one of the same vendor in it. [How it "
        "works](how-it-works.md) explains the models; [Accuracy](accuracy.md) has whole steps.\n",
        "## Measured\n",
        "| Family | Measurements | On | Median, left out | P90, left out |",
        "| --- | ---: | --- | ---: | ---: |",
    ]
    for key in sorted(measured, key=lambda key: (order.index(key[0]), key)):
        family, variant, arithmetic = key
        own = {
            names[device.device]: entry.num_rows
            for device in table.devices
            for entry in device.families
            if (entry.family, entry.variant, entry.arithmetic) == key
        }
        error = errors.get(key)
        unseen = (error.median_error_fraction, error.p90_error_fraction) if error else ()
        shares = [format_percent(share) for share in unseen] or ["", ""]
        name = name_of(family, variant, "matrix" if arithmetic == "tensor" else "")
        lines.append(_table_row([name, f"{sum(own.values()):,}", ", ".join(own), *shares]))
    lines += [
        "\n## Like another family\n",
        "Where nothing was measured, a family takes the share that its relative reaches, times a "
        "factor. The factors are judgement; a prediction's interval has their uncertainty: "
        "exp(±1.6 σ) at 90 %. Attention on matrix units is not of these: it is computed by the "
        "blocks of the kernel that PyTorch picks (flash, efficient or cuDNN), held against "
        "published figures by `python benchmarks/attention_rates.py`. A time step of a small "
        "recurrent layer waits for 1,900 cycles in fp32 and 2,900 in fp16, timed forward on an "
        "H200 with 64 units, and by judgement for twice that backward.\n",
        "| Family | Like | Factor | σ |",
        "| --- | --- | ---: | ---: |",
    ]
    families = {family for family, _, _ in measured}
    for (family, variant), proxy in PROXIES.items():
        # Layer norms alone were timed, and stand in for no others.
        is_norm = family is Family.NORMALIZATION
        if variant or is_norm or family not in families:
            # On matrix units attention has rates of its own.
            units = "plain" if family is Family.ATTENTION else ""
            name = name_of(family, "batch, group, rms" if is_norm else variant, units)
            factor, sigma = f"{proxy.factor:g}", f"{proxy.log_sigma:g}"
            lines.append(_table_row([name, proxy.family.replace("_", " "), factor, sigma]))
    lines += [
        "\n## Which family it is in\n",
        "| In a script | Costed as |",
        "| --- | --- |",
        *(_table_row(row) for row in _IN_A_SCRIPT),
    ]
    return "\n".join([*lines, ""])


_IN_A_SCRIPT = (
    (
        "`scaled_dot_product_attention`",
        "attention, by the kernel that PyTorch picks by shape, dtype, mask and device: cuDNN's on "
        "Hopper and datacenter Blackwell, then flash, then efficient (fp32, or with a mask); where "
        "none takes the operands, products and softmax one by one",
    ),
    (
        "fused and foreach optimizers",
        "elementwise, over the tensors of a list: a kernel for each operator and 30 to 110 of "
        "them; a fused one reads and writes each tensor once",
    ),
    (
        "embeddings, `EmbeddingBag`, `index_select`, `scatter_add`, `index_add` and their kin",
        "gather, by the rows that are moved; of long lists of positions the sorting too",
    ),
    (
        "sparse matrices",
        "a product reads a row for each stored value, as a reduction does. No measurement of one "
        "is known",
    ),
    (
        "`LSTM`, `GRU`, `RNN`",
        "recurrent: a latency for each time step, and the arithmetic. Small layers in fp32, TF32 "
        "or fp16 take all steps in one kernel from cuDNN 8.2.1 on, on NVIDIA's GPUs since Pascal: "
        "up to 192 units forward and 128 backward, 384 and 256 of `RNN`. Where cuDNN does not "
        "take them, and for cells in a loop, each operator by itself",
    ),
    (
        "compiled steps",
        "generated kernels by what they read and write, times two factors that are fitted to an "
        "RTX 4090; libraries are called as before",
    ),
    ("float8", "16 bits, with a caveat"),
    (
        "copies, launches and waits",
        "the link's rate and the launches of the GPU's generation; of a "
        "[calibrated GPU](calibrate.md) as measured",
    ),
)


def rules_page() -> str:
    """Return the list of rules, each of which leads to its page."""
    from breakeven.report import all_rule_pages

    lines = [
        NOTICE,
        "# Rules\n",
        "What [`check` and `explain`](../reading-the-report.md#findings) find, by code. A code is "
        "stable; several rules may detect the same cause. `breakeven rules CODE` shows the same "
        "pages in the terminal.\n",
        "| Code | Cause | What it finds |",
        "| --- | --- | --- |",
    ]
    for rule in all_rule_pages():
        link = f"[{rule.code}](../../src/breakeven/advise/rules/{rule.code}.md)"
        lines.append(_table_row([link, f"`{rule.cause}`", rule.title]))
    return "\n".join([*lines, ""])


def sweep_json_page() -> str:
    """Return the keys of the JSON report of a sweep."""
    return _schema_page(
        "# JSON of a sweep\n",
        "sweep TARGET --over NAME=VALUES",
        "Times are in nanoseconds, as their keys say. `low` and `high` bound a 90 % interval. Every"
        " key is always there; what is unknown is null.\n",
    )


def tune_json_page() -> str:
    """Return the keys of the JSON report of a tuning."""
    return _schema_page(
        "# JSON of a tuning\n",
        "tune TARGET",
        "Times are in nanoseconds, as their keys say. `low` and `high` bound a 95 % interval. Every"
        " key is always there, and what is unknown is null, but for `configuration`: it holds only"
        " what differs from the script's own settings.\n",
        saved="the settings themselves are written to `breakeven.toml`",
    )


def tune_page() -> str:
    """Return the page on tuning as it is, with the table of settings that the code declares."""
    from breakeven.settings import SETTINGS

    before, begin, rest = (DOCS / "tune.md").read_text("utf-8").partition("<!-- settings")
    notice, _, rest = rest.partition("-->\n")
    _, end, after = rest.partition("<!-- end of settings -->")
    rows = [
        ["Candidate", "What it changes", "Numbers", "How it is undone"],
        ["---"] * 4,
        *(
            [setting.forms, setting.explanation, setting.numerics.replace("_", " "), setting.undo]
            for setting in SETTINGS.values()
            if setting.values
        ),
    ]
    table = "\n".join(map(_table_row, rows))
    return f"{before}{begin}{notice}-->\n\n{table}\n\n{end}{after}"


def validation_json_page() -> str:
    """Return the keys of the JSON report of a validation."""
    return _schema_page(
        "# JSON of a validation\n",
        "validate TABLE.csv",
        "The unit of a number is in its key: `_ms` milliseconds, as in tables, `_fraction` a share"
        " or an error, 0.12 for 12 %. `low` and `high` bound a 90 % interval. Every key is always"
        " there; what is unknown is null.\n",
    )


def workloads_json_page() -> str:
    """Return the keys of the JSON report of systems with published figures."""
    return _schema_page(
        "# JSON of the six systems\n",
        "workloads NAME",
        "The unit of a table's figures is the `kind` of their column, also of an estimate, whatever"
        " its keys are called; elsewhere it is in the key. `low` and `high` bound a 90 % interval."
        " Every key is always there; what is unknown is null.\n",
    )


def compare_json_page() -> str:
    """Return the keys of the JSON report of a comparison."""
    return _schema_page(
        "# JSON of a comparison\n",
        "compare A.json B.json",
        "Times are in nanoseconds, as their keys say. A `ratio` is that of the second run to the"
        " first; `low` and `high` bound a 90 % interval. Every key is always there; what is unknown"
        " is null.\n",
        saved="",
    )


def devices_json_page() -> str:
    """Return the keys of the catalogue of devices as JSON."""
    return _schema_page(
        "# JSON of devices\n",
        "devices [NAME]",
        "The unit of a number is in its key: `_bytes` bytes, `_hz` hertz, `_per_s` a rate per"
        " second, `_watts` watts. Every key is always there. What a device lacks is left out of"
        " `peak_flop_per_s`.\n",
        saved="",
    )


def hosts_json_page() -> str:
    """Return the keys of the table of hosts as JSON."""
    return _schema_page(
        "# JSON of hosts\n",
        "devices --hosts [NAME]",
        "Every key is always there.\n",
        saved="",
        name="hosts",
    )


def rules_json_page() -> str:
    """Return the keys of the rules as JSON."""
    return _schema_page(
        "# JSON of rules\n", "rules [CODE|CAUSE]", "Every key is always there.\n", saved=""
    )


def calibrate_json_page() -> str:
    """Return the keys of a measured host as JSON."""
    return _schema_page(
        "# JSON of a calibration\n",
        "calibrate",
        "Times are in nanoseconds per call, as their keys say; `low` and `high` are percentiles of"
        " the rounds, and no interval. Every key is always there.\n",
        saved="",
    )


def _schema_page(
    title: str,
    usage: str,
    units: str,
    *,
    saved: str = "`-o FILE` writes the same",
    name: str = "",
) -> str:
    """Return the keys of a command's document, from its schema.

    Args:
        title: Heading of the page.
        usage: The command, without ``--json``.
        units: How its figures are to be read.
        saved: What the command writes to a file; empty for nothing.
        name: Of the schema, where that is not the command's.
    """
    file = f"schema/{name or usage.split()[0]}.schema.json"
    schema = json.loads((DOCS / file).read_text("utf-8"))
    definitions: Mapping[str, Schema] = schema["$defs"]
    root = _definition_name(schema["$ref"])
    ordered = list(dict.fromkeys((root, *_reachable(root, definitions))))
    version = definitions[root]["properties"]["schema_version"]["const"]
    lines = [
        NOTICE,
        title,
        f"`breakeven {usage} --json` prints one document{f', and {saved}' if saved else ''}; the "
        f"[JSON schema]({file}) describes it. This is `schema_version` {version}:"
        " a key that goes away or changes its meaning raises it, a new key does not.\n",
        units,
    ]
    for name in ordered:
        lines += _definition_section(name, definitions[name])
    return "\n".join(lines)


PAGES: Mapping[str, Callable[[], str]] = {
    "calibrate-json.md": calibrate_json_page,
    "cli.md": cli_page,
    "compare-json.md": compare_json_page,
    "devices-json.md": devices_json_page,
    "devices.md": devices_page,
    "explain-json.md": explain_json_page,
    "hosts-json.md": hosts_json_page,
    "json.md": json_page,
    "kernels.md": kernels_page,
    "operators.md": operators_page,
    "rules-json.md": rules_json_page,
    "rules/index.md": rules_page,
    "sweep-json.md": sweep_json_page,
    "tune-json.md": tune_json_page,
    "tune.md": tune_page,
    "validation-json.md": validation_json_page,
    "workloads-json.md": workloads_json_page,
}


def pages() -> Mapping[str, str]:
    """Return the text of every page that follows from the code, by file name."""
    return {name: page() for name, page in PAGES.items()}


def outdated_pages() -> Mapping[str, str]:
    """Return the text of the pages that differ on disk."""
    return {name: text for name, text in pages().items() if _text_on_disk(name) != text}


def main(argv: list[str]) -> int:
    """Write the pages, or with ``--check`` compare them; return the exit code."""
    parser = argparse.ArgumentParser(description="Write the generated pages of the docs.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if outdated")
    args = parser.parse_args(argv)
    outdated = outdated_pages()
    if args.check:
        for name in outdated:
            sys.stderr.write(f"docs/{name} is out of date: run python docs/generate.py\n")
        return 1 if outdated else 0
    for name, text in outdated.items():
        path = DOCS / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
        sys.stderr.write(f"wrote docs/{name}\n")
    return 0


def _text_on_disk(name: str) -> str | None:
    path = DOCS / name
    return path.read_text("utf-8") if path.exists() else None


def command_parsers(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Return the parser of each command of the whole command line, by name."""
    # argparse has no public way to list them.
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    raise ValueError(f"{parser.prog} has no commands")


def _help_section(title: str, parser: argparse.ArgumentParser) -> list[str]:
    return [f"## {title}\n", "```text", parser.format_help().rstrip(), "```\n"]


def _vendor_name(vendor: str) -> str:
    return {"nvidia": "NVIDIA", "amd": "AMD"}.get(vendor, vendor.capitalize())


def _table_row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _definition_name(reference: str) -> str:
    return reference.rpartition("/")[2]


def _reachable(name: str, definitions: Mapping[str, Schema]) -> list[str]:
    """Return the definitions that ``name`` refers to, in the order of first mention."""
    found: list[str] = []
    for reference in re.findall(r'"#/\$defs/(\w+)"', json.dumps(definitions[name])):
        found += [reference, *_reachable(reference, definitions)]
    return found


def _definition_section(name: str, definition: Schema) -> list[str]:
    lines = [f"## {name}\n", f"{_prose(definition)}\n"]
    if "enum" in definition:
        return [*lines, "One of " + ", ".join(f"`{value}`" for value in definition["enum"]) + ".\n"]
    lines += ["| Key | Value | Meaning |", "| --- | --- | --- |"]
    for key, value in definition["properties"].items():
        lines.append(_table_row([f"`{key}`", _value_type(value), _prose(value)]))
    return [*lines, ""]


def _prose(schema: Schema) -> str:
    """Return a description on one line, with Markdown's way of marking code."""
    return " ".join(schema.get("description", "").split()).replace("``", "`")


def _value_type(value: Schema) -> str:
    """Return a type for a person: ``list of [Finding](#finding)``."""
    if "$ref" in value:
        name = _definition_name(value["$ref"])
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        return " or ".join(_value_type(choice) for choice in value["anyOf"])
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    if "enum" in value:
        return " or ".join(f"`{json.dumps(choice)}`" for choice in value["enum"])
    if "prefixItems" in value:
        return "[" + ", ".join(_value_type(item) for item in value["prefixItems"]) + "]"
    if "additionalProperties" in value:
        return f"map of {_value_type(value['additionalProperties'])}"
    if value["type"] == "array":
        return f"list of {_value_type(value['items'])}"
    return str(value["type"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
