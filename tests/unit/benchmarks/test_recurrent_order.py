"""Which of two GPUs is faster at a small recurrent layer, against GPUs timed with one library."""

from __future__ import annotations

from pathlib import Path

import pytest

from factories.loaded_scripts import load_script

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"

# DeepBench, CUDA 8.0.88 with cuDNN 6.0.21, milliseconds for all time steps of an LSTM:
# hidden units, batch, time steps, phase, GTX 1080 Ti, P100. The P100 has the units and the
# bandwidth of the GTX 1080 Ti or more, and a slower clock.
TIMED = (
    (256, 16, 150, "fw", 3.714, 4.311), (256, 16, 150, "bw_input", 4.255, 5.234),
    (256, 32, 150, "fw", 6.861, 8.744), (256, 32, 150, "bw_input", 14.831, 20.083),
    (256, 64, 150, "fw", 6.479, 9.522), (256, 64, 150, "bw_input", 9.143, 13.851),
    (512, 16, 25, "fw", 1.259, 1.478), (512, 16, 25, "bw_input", 1.447, 1.688),
)  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "ops_deepbench_rnn.csv"
    lines = ["source,device,op,hidden,batch,timesteps,dtype,phase,latency_ms,suite,env"]
    for hidden, batch, steps, phase, *times in TIMED:
        for device, time_ms in zip(("GTX 1080 Ti", "P100 PCIe 16GB"), times, strict=True):
            layer = f"rnn_lstm,{hidden},{batch},{steps},fp32,{phase}"
            lines.append(f"deepbench,{device},{layer},{time_ms},,CUDA 8.0.88 cuDNN 6.0.21")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("leaves_out", [False, True])
def test_the_gpu_with_the_faster_clock_is_named(table: Path, *, leaves_out: bool) -> None:
    benchmark = load_script(BENCHMARKS / "recurrent_order.py")
    pairs = list(benchmark.pairs_of(benchmark.read_recurrent(table), leaves_out=leaves_out))
    assert len(pairs) == len(TIMED)
    assert all(pair.has_same_library for pair in pairs)
    wrong = [pair for pair in pairs if not pair.is_right]
    assert not wrong
    # Neither arithmetic nor traffic decides at these sizes.
    assert sum(pair.is_latency_bound for pair in pairs) >= len(pairs) / 2
