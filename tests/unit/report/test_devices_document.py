"""GPUs, CPUs and a measured host, as text."""

from __future__ import annotations

import io
import json

from rich.console import Console

from breakeven.device import find_device, find_host_cpu
from breakeven.report import (
    busy_note,
    calibration_document,
    device_document,
    hosts_document,
    render,
    stored_hosts,
    to_json,
)
from factories.hosts import HOST, calibration


def test_sheet_says_what_was_measured_and_what_it_gives() -> None:
    console = Console(file=io.StringIO(), width=80)
    measured = calibration(op=1_000.0, layer_norm=2_000.0)
    shown = calibration_document(measured, single_thread_speed=2.04, notes=["Remembered."])
    render(shown, console)
    text = console.file.getvalue()
    assert "Made-up CPU" in text
    assert "2× the single-thread speed" in text
    (op_line,) = [line for line in text.splitlines() if "call of op" in line]
    # A calibration shows the tenth and the ninetieth percentile, not an error of the median.
    assert op_line.split() == ["call", "of", "op", "1.0", "µs", "(900", "ns–1.2", "µs)", "steps"]
    (norm_line,) = [line for line in text.splitlines() if "call of layer_norm" in line]
    assert norm_line.rstrip().endswith("shown only")
    (cost_line,) = [line for line in text.splitlines() if "operator of a GPU" in line]
    assert cost_line.rstrip().endswith("2 µs")
    assert "±28 %" in text, "e^0.25 - 1"
    assert HOST.source in text
    assert text.rstrip().endswith("Remembered.")
    assert all(len(line) <= 80 for line in text.splitlines())


def test_an_address_is_left_in_one_piece() -> None:
    device = find_device("a100")
    console = Console(file=io.StringIO(), width=40)
    render(device_document(device), console)
    lines = console.file.getvalue().splitlines()
    assert all(f"  {source}" in lines for source in device.sources)
    assert any(len(source) > 40 for source in device.sources)


def test_busy_machine_is_said() -> None:
    assert busy_note(0.314).startswith("Other processes used 31 % of the processors")


def test_hosts_as_a_table_and_as_json() -> None:
    cpus = (find_host_cpu("EPYC 7742"), find_host_cpu("vm-epyc"))
    console = Console(file=io.StringIO(), width=80)
    render(hosts_document(cpus), console)
    lines = console.file.getvalue().splitlines()
    assert " ".join(lines[1].split()) == "EPYC 7742 Zen 2 2019 64 3.4 GHz 1.00 4.61T"
    assert "--host NAME" in lines[-2]
    assert "--device NAME" in lines[-1]
    assert all(len(line) <= 80 for line in lines)
    document = json.loads(to_json(stored_hosts(cpus)))
    assert [host["id"] for host in document["hosts"]] == ["epyc-7742", "vm-epyc"]
    assert document["hosts"][0]["single_thread_speed"] == 1.0
    assert document["hosts"][1]["is_virtual"] is True
