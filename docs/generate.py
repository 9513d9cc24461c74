"""Write the pages of the documentation that follow from the code.

``python docs/generate.py`` writes ``PAGES`` and ``GALLERY``. With ``--check`` it changes nothing,
and exits with 1 if one of ``PAGES`` is out of date. Git keeps ``PAGES``: they can be read, and
their changes reviewed, without building anything.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

# argparse breaks lines at the width of the terminal: the pages must not depend on it.
HELP_COLUMNS = 80
DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS)]

from answers import ANSWERS  # noqa: E402
from terminal import moving, still  # noqa: E402

STORED = {answer.name: answer for answer in ANSWERS}
NOTICE = "<!-- Written by docs/generate.py; do not edit by hand. -->\n"


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
            "A shell completes commands, options and names of devices after `pip install "
            '"breakeven[completion]"` and `eval "$(register-python-argcomplete breakeven)"`.\n',
            *_help_section("breakeven", parser),
        ]
        for name, command in command_parsers(parser).items():
            lines += _help_section(f"breakeven {name}", command)
    return "\n".join(lines)


def devices_page() -> str:
    """Return the names of the catalogue, by vendor."""
    from breakeven.device import default_devices, load_catalogue

    catalogue = load_catalogue()
    default = ", ".join(device.name for device in default_devices())
    lines = [
        NOTICE,
        "# Devices\n",
        f"A step can be predicted for {len(catalogue)} devices. `breakeven devices` lists them "
        "with memory, bandwidth and rates; `breakeven devices NAME` shows one in full, with the "
        f"source of each figure. `check` compares these by default: {default}.\n",
    ]
    for vendor in dict.fromkeys(device.vendor for device in catalogue):
        by_architecture: dict[str, list[str]] = {}
        for device in catalogue:
            if device.vendor == vendor:
                by_architecture.setdefault(device.architecture, []).append(device.name)
        lines.append(f"## {_vendor_name(vendor)}\n")
        lines += [f"- {name}: {', '.join(names)}" for name, names in by_architecture.items()]
        lines.append("")
    return "\n".join(lines)


_JSON_DOCUMENTS = {
    "check": "check TARGET",
    "cost": "cost TARGET|RUN.json --steps N",
    "explain": "explain TARGET",
    "normal": "normal TARGET --measured SPEED",
    "sweep": "sweep TARGET --over NAME=VALUES",
    "tune": "tune TARGET",
    "validate": "validate TABLE.csv",
    "workloads": "workloads NAME",
    "compare": "compare A.json B.json",
    "devices": "devices [NAME]",
    "hosts": "devices --hosts [NAME]",
    "prices": "prices [NAME ...]",
    "rules": "rules [CODE|CAUSE]",
    "calibrate": "calibrate",
}


def json_page() -> str:
    """Return which command prints which document, with its schema."""
    lines = [
        NOTICE,
        "# JSON\n",
        "With `--json` a command prints exactly one document. Its JSON schema says what each key "
        "means. A key that goes away or changes its meaning raises `schema_version`; a new key "
        "does not.\n",
        "| Command | Schema | Version | Keys |",
        "| --- | --- | --- | --- |",
    ]
    for name, usage in _JSON_DOCUMENTS.items():
        schema = json.loads((DOCS / f"schema/{name}.schema.json").read_text("utf-8"))
        keys = schema["$defs"][schema["$ref"].rpartition("/")[2]]["properties"]
        version = keys.pop("schema_version")["const"]
        link = f"[{name}](schema/{name}.schema.json)"
        named = ", ".join(f"`{key}`" for key in keys)
        lines.append(_table_row([f"`breakeven {usage}`", link, str(version), named]))
    return "\n".join([*lines, _ABOUT_JSON])


_ABOUT_JSON = """
- The unit of a number is in its key: `_ns` nanoseconds, `_ms` milliseconds, `_bytes` bytes, `_hz`
  hertz, `_per_s` a rate per second, `_fraction` a share between 0 and 1. In tables of `workloads`
  it is the `kind` of the column.
- `low` and `high` bound a 90 % interval; in `tune` 95 %; in `calibrate` they are percentiles of the
  rounds.
- Every key is always there, and what is unknown is null. Two keys hold only what differs or
  exists: `configuration` of `tune`, and `peak_flop_per_s` of devices.
- `-o FILE` writes the document of `check`, `explain`, `sweep`, `tune`, `validate` and `workloads`
  to a file. A stored check or explanation also has its `recording`, which `explain FILE` reads.

```python
import json

report = json.load(open("report.json"))
for result in report["results"]:
    print(result["device"], result["step_ns"] / 1e6, "ms", result["source"])
```
"""


_NORMAL = """
`breakeven normal` compares the time of a step with the one predicted for that GPU:

```sh
breakeven normal train.py --measured "colab T4: 41 ms"
breakeven normal run.json --measured "T4: 24 it/s"
```

The second form takes a run that `check -o run.json` stored, and runs nothing. With a GPU in this
machine, `breakeven normal train.py` measures it.

A step beyond the interval is too slow. The report ranks the causes that can add that much to this
step: the loader, a slow host, waits, float64, unused tensor cores, a slowed GPU. One number cannot
tell them apart, so each comes with what to look at. Causes that explain less than 5 % of the excess
are left out. A step far below the interval is too fast: look for a missing `synchronize()`. A
normal speed also shows how fast the host is, and narrows the predictions for other GPUs.

## How often that is right

`benchmarks/normal.py` judged {rows} measured steps of sources that the calibration had not seen.
{0} were called normal. At twice their time, {1} of the steps that the GPU limits were called slow.
Of the steps that launches limit, {2} were at four times. At twice, {3} were if one other speed of
the machine was known, {4} if three were, and {5} if one was and both steps train.

A training step shows less about inference on its machine: the backward pass is issued by a thread
whose speed differs. One speed of training leaves inference about as uncertain as before.

## What known steps should take

Predicted by `benchmarks/normal_table.py` with the reference CPU; in parentheses, the 90 % interval
between machines of a kind. A dash marks a step that does not fit.
"""


def normal_page() -> str:
    """Return what a step of known networks should take, on GPUs in kinds of machines."""
    data = DOCS.parent / "benchmarks/data"
    with (data / "normal_steps_2026-11-29.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    from breakeven.report.text import duration_with_interval

    kinds = list(dict.fromkeys(row["host"] for row in rows))
    known = json.loads((data / "normal_2026-11-29.json").read_text("utf-8"))["tested on"]
    launches = "launch-bound, {} other steps of the machine known, 2 times as long: slow"
    tests = (
        "unchanged: normal",
        "device-bound, 2 times as long: slow",
        "launch-bound, 4 times as long: slow",
        launches.format(1),
        launches.format(3),
        "launch-bound, a training step, another of the machine known, 2 times as long: slow",
    )
    percents = [f"{100 * known[test]['share']:.0f} %" for test in tests]
    lines = [NOTICE, "# Is this speed normal?", _NORMAL.format(*percents, **known[tests[0]])]
    for step in dict.fromkeys(row["step"] for row in rows):
        lines += [f"### {step}\n", _table_row(["GPU", *kinds]), _table_row(["---"] * 4)]
        of_step = [row for row in rows if row["step"] == step]
        for gpu in dict.fromkeys(row["gpu"] for row in of_step):
            times = (
                duration_with_interval(*(1e6 * float(row[k]) for k in ("ms", "low_ms", "high_ms")))
                if int(row["fits"])
                else "–"
                for row in of_step
                if row["gpu"] == gpu
            )
            lines.append(_table_row([gpu, *times]))
        lines.append("")
    return "\n".join(lines)


def operators_page() -> str:
    """Return the operators that a step is generated for, by the module that does."""
    import faststep.codegen.dividing  # noqa: F401 - it registers them
    from faststep.codegen import operators

    by_module: dict[str, list[str]] = {}
    for name in sorted(operators.covered_operators()):
        home = operators.HANDLERS.get(name)
        by_module.setdefault(home.__module__ if home else operators.__name__, []).append(name)
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


# What the letters of a code stand for, in the order of the list.
_RULE_FAMILIES = {
    "LAUNCH": "Launches",
    "SYNC": "Waits of the host",
    "COPY": "Copies to the device",
    "LOAD": "Loading data",
    "HOST": "Work outside of torch",
    "LOOP": "Python loops",
    "BATCH": "Batch size",
    "OPT": "Optimizer",
    "KERN": "Kernels",
    "PREC": "Precision",
    "MEM": "Memory",
    "DEV": "Device placement",
    "CPU": "On the CPU",
    "RUN": "Settings of the run",
    "TIME": "Timing",
}


def rules_page() -> str:
    """Return the list of rules by family, each of which leads to its page."""
    from breakeven.report import all_rule_pages

    families: dict[str, list[Any]] = {letters: [] for letters in _RULE_FAMILIES}
    for rule in all_rule_pages():
        families[rule.code.rstrip("0123456789")].append(rule)
    lines = [
        NOTICE,
        "# Rules\n",
        "What [`check` and `explain`](../reading-the-report.md#findings) find, by family. A code "
        "is stable; several rules may detect the same cause. The search finds rules by words. "
        "`breakeven rules CODE` shows the same pages in the terminal.\n",
    ]
    for letters, rules in families.items():
        lines += [f"## {_RULE_FAMILIES[letters]}\n", "| Code | What it finds | Cause |"]
        lines.append("| --- | --- | --- |")
        for rule in rules:
            link = f"[{rule.code}]({rule.code}.md)"
            lines.append(_table_row([link, rule.title, f"`{rule.cause}`"]))
        lines.append("")
    return "\n".join(lines)


def rule_pages() -> Mapping[str, Callable[[], str]]:
    """Return the page of each rule, which includes the one in the package."""
    folder = DOCS.parent / "src/breakeven/advise/rules"
    return {
        f"rules/{page.name}": partial(
            '{}\n--8<-- "{}"\n'.format, NOTICE, page.relative_to(DOCS.parent).as_posix()
        )
        for page in sorted(folder.glob("*.md"))
    }


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


def terminal_text(name: str, *, is_coloured: bool = False) -> str:
    """Return a stored answer as a terminal of 80 columns shows it."""
    answer = STORED[name]
    if answer.file.suffix == ".txt":
        return answer.file.read_text("utf-8")
    from rich.console import Console

    from breakeven.report import read_document, show

    console = Console(
        file=io.StringIO(), width=HELP_COLUMNS, force_terminal=is_coloured, highlight=False,
        color_system="standard" if is_coloured else None, legacy_windows=False, _environ={},
    )  # fmt: skip
    show(read_document(answer.file), console)
    written = console.file.getvalue()  # type: ignore[attr-defined]
    return re.sub(r"[ \t]+$", "", written, flags=re.MULTILINE).strip("\n") + "\n"


# <!-- answer: NAME 1 3 --> precedes a block of code with these paragraphs of a stored answer (or
# "verdict", its first sentences), and
# <!-- answer: NAME diff --> one with the last part of the changed loop.
_EXCERPT = re.compile(r"(<!-- answer: ([\w-]+)((?: \w+)*) -->\n+```\w*\n).*?(?=^```)", re.S | re.M)
# <!-- tunings: NAME --> precedes a line on the speed-ups of all tunings.
_TUNINGS = re.compile(r"(<!-- tunings: ([\w-]+) -->\n\n)[^\n]*")


def with_answers(name: str) -> str:
    """Return a page as it is, with the excerpts from stored answers."""
    from breakeven.units import format_ratio

    def excerpt(found: re.Match[str]) -> str:
        if found[3] == " diff":
            diff = json.loads(STORED[found[2]].file.read_text("utf-8"))["code_change"]["diff"]
            return f"{found[1]}{re.split(r'^@@.*@@.*$', diff, flags=re.M)[-1].strip(chr(10))}\n"
        paragraphs = terminal_text(found[2]).rstrip().split("\n\n")
        verdict = first_sentences(" ".join(paragraphs[0].splitlines()))
        parts = {"verdict": textwrap.fill(verdict, HELP_COLUMNS)}
        parts |= {str(number): text for number, text in enumerate(paragraphs, start=1)}
        shown = [parts[name] for name in found[3].split()] or paragraphs
        return f"{found[1]}$ breakeven {STORED[found[2]].command}\n" + "\n\n".join(shown) + "\n"

    def tunings(found: re.Match[str]) -> str:
        speedups = json.loads(STORED[found[2]].speedups_file.read_text("utf-8"))
        low, middle, high = map(format_ratio, (min(speedups), median(speedups), max(speedups)))
        return (
            f"{found[1]}Tunings: {len(speedups)}. Their median, {middle}, is shown; their range is "
            f"{low} to {high}."
        )

    return _TUNINGS.sub(tunings, _EXCERPT.sub(excerpt, (DOCS / name).read_text("utf-8")))


def repository() -> str:
    """Return the address of the repository, which pyproject.toml holds."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text("utf-8"))["project"]
    return project["urls"]["Repository"]


def with_repository(name: str) -> str:
    """Return a page as it is, with the name of the repository."""
    owner = repository().split("/")[-2]
    text = (DOCS / name).read_text("utf-8")
    return re.sub(r"[\w.-]+(?=/breakeven(@|$))", owner, text, flags=re.MULTILINE)


def gallery_page() -> str:
    """Return the stored answers of the gallery, each with its first sentence and its page."""
    shown = [answer for answer in ANSWERS if answer.title]
    lines = [NOTICE, "# Gallery\n", _GALLERY.format(count=len(shown))]
    for answer in shown:
        # The answers of a system of rules follow its name.
        lines_shown = terminal_text(answer.name).split("\n\n")[0].splitlines()
        verdict = " ".join(lines_shown if answer.has_page else lines_shown[:1])
        links = [f"[script]({repository()}/blob/main/{answer.script})"] * bool(answer.script)
        links += [f"[page](gallery/{answer.name}.html)"] * answer.has_page
        links += [f"[JSON](answers/{answer.file.name})"]
        lines += [
            f"## {answer.title[0].upper()}{answer.title[1:]}\n",
            f"```sh\nbreakeven {answer.command}\n```\n",
            f"> {escape(first_sentences(verdict), quote=False)}\n",
            f"{' · '.join(links)}\n",
        ]
    return "\n".join(lines)


_GALLERY = """\
{count} answers from two cores of an Intel Xeon without a GPU. Each page says how busy they were.
"""


def first_sentences(text: str, most: int = 240) -> str:
    """Return the whole sentences that fit into ``most`` characters, at least one."""
    ends = [found.end() for found in re.finditer(r"\.(?= [A-Z]|$)", text)] or [len(text)]
    return text[: max((end for end in ends if end <= most), default=ends[0])]


def answer_file(name: str, suffix: str) -> str:
    """Return a stored answer as a page or a chart."""
    from breakeven.report import chart_document, read_document

    return chart_document(read_document(STORED[name].file), suffix).decode()


def check_picture() -> str:
    """Return what ``check`` shows, down to its table."""
    paragraphs = terminal_text("tabular", is_coloured=True).split("\n\n")
    prompt = f"\x1b[32m$\x1b[0m breakeven {STORED['tabular'].command}"
    return still("\r\n".join("\n\n".join([prompt, paragraphs[0], paragraphs[2]]).split("\n")))


def demo_picture() -> str:
    """Return the recorded session, moving."""
    _, *lines = (DOCS / "demo.cast").read_text("utf-8").splitlines()
    return moving([(event[0], event[2]) for event in map(json.loads, lines)], num_rows=26)


def llms_page() -> str:
    """Return the pages of the navigation for language models, in the form of llmstxt.org."""
    lines = [
        "# breakeven\n",
        "> Does a GPU pay off for your PyTorch training step, and from which size on? Answered "
        "without a GPU, from the unmodified script, with a 90 % interval for each figure.\n",
        "Coding agents: [SKILL.md](SKILL.md) says when to ask what, and how to read the answer.\n",
        "## Docs\n",
    ]
    entry = re.compile(r"^ +- (?:\"?(.+?)\"?: )?([\w/-]+\.md)", re.MULTILINE)
    for title, page in entry.findall((DOCS.parent / "mkdocs.yml").read_text("utf-8")):
        lines.append(f"- [{title or page.split('/')[0]}](docs/{page})")
    return "\n".join(lines) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "../llms.txt": llms_page,
    "../README.md": partial(with_answers, "../README.md"),
    "ci.md": partial(with_repository, "ci.md"),
    "cli.md": cli_page,
    "devices.md": devices_page,
    "gallery.md": gallery_page,
    "json.md": json_page,
    "kernels.md": kernels_page,
    "normal.md": normal_page,
    "notebooks.md": partial(with_repository, "notebooks.md"),
    "operators.md": operators_page,
    "pictures/chart.svg": partial(answer_file, "disc", ".svg"),
    "pictures/check.svg": check_picture,
    "pictures/demo.svg": demo_picture,
    "rules/index.md": rules_page,
    "tune.md": tune_page,
    "tutorial.md": partial(with_answers, "tutorial.md"),
    **rule_pages(),
}
# Git ignores these: they follow from stored answers, and change with the style of reports.
GALLERY: Mapping[str, Callable[[], str]] = {
    f"gallery/{answer.name}.html": partial(answer_file, answer.name, ".html")
    for answer in ANSWERS
    if answer.title and answer.has_page
}


def outdated_pages(pages: Mapping[str, Callable[[], str]]) -> Mapping[str, str]:
    """Return the text of the pages that differ on disk, by file name."""
    texts = {name: page() for name, page in pages.items()}
    return {name: text for name, text in texts.items() if _text_on_disk(name) != text}


def main(argv: list[str]) -> int:
    """Write the pages, or with ``--check`` compare them; return the exit code."""
    parser = argparse.ArgumentParser(description="Write the generated pages of the docs.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if outdated")
    args = parser.parse_args(argv)
    outdated = outdated_pages(PAGES if args.check else {**PAGES, **GALLERY})
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
