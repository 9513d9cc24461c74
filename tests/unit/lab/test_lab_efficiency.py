"""The fit: rows become kernels, known parameters come back, devices left out are predicted."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import numpy as np
import pytest

from breakeven.calibrate.fit import Quality, TimedKernel
from breakeven.cost import (
    EfficiencyTable,
    Family,
    Kernel,
    kernel_times,
    load_efficiencies,
    lower,
)
from breakeven.device import DeviceSpec, find_device
from breakeven.trace import Settings
from lab.efficiency import describe_efficiencies, fit_table, held_out_errors
from lab.fit import efficiencies_document, main
from lab.table_ops import apple_ops, product_op
from lab.timed_tables import _IDLE_TABLES, read_tables


def elementwise_kernels() -> list[Kernel]:
    return [
        Kernel(family=Family.ELEMENTWISE, flop=size, read_bytes=8 * size, write_bytes=4 * size)
        for size in np.geomspace(1e7, 1e9, 40)
    ]


def timed(
    device: DeviceSpec,
    kernels: list[Kernel],
    *,
    table: EfficiencyTable | None = None,
    slowdown: float = 1.0,
) -> list[TimedKernel]:
    """Return kernels as if measured at the model's times."""
    times = kernel_times(kernels, [device], efficiencies=table, warm_fraction=1.0).time_ns[:, 0]
    return [
        TimedKernel(device=device, kernel=kernel, time_ns=slowdown * float(time), source="made up")
        for kernel, time in zip(kernels, times, strict=True)
    ]


def test_quality_of_known_errors() -> None:
    quality = Quality.of(np.log([0.5, 1.0, 1.0, 1.0, 1.2]))
    assert quality.median_error_fraction == pytest.approx(0.0)
    # The 90th percentile of errors 0, 0, 0, 0.2, 0.5 lies at 0.2 + 0.6 × 0.3.
    assert quality.p90_error_fraction == pytest.approx(0.38)


def test_memory_fraction_comes_back() -> None:
    device = find_device("v100-pcie-32gb")
    rows = [
        TimedKernel(
            device=device,
            kernel=kernel,
            # 60 % of the bandwidth and the floor of a Volta kernel.
            time_ns=1e9 * kernel.num_bytes / (0.6 * device.memory_bytes_per_s) + 1_500,
            source="made up",
        )
        for kernel in elementwise_kernels()
    ]
    (entry,) = fit_table(rows, "test").devices[0].families
    assert entry.memory_fraction == pytest.approx(0.6, rel=0.02)
    assert entry.num_rows == 40
    assert entry.median_error_fraction < 0.01


def test_product_parameters_predict_what_they_were_fitted_to() -> None:
    device = find_device("a100-pcie-40gb")
    rng = np.random.default_rng(0)
    kernels = [
        Kernel(
            family=Family.GEMM,
            flop=2.0 * m * n * k,
            read_bytes=4.0 * (m * k + k * n),
            write_bytes=4.0 * m * n,
            m=m,
            n=n,
            k=k,
        )
        for m, n, k in np.exp(rng.uniform(np.log(200), np.log(5_000), (60, 3))).astype(int).tolist()
    ]
    table = fit_table(timed(device, kernels), "test")
    assert table.devices[0].families[0].median_error_fraction < 0.03


def test_device_left_out_is_predicted_from_the_others() -> None:
    names = ("v100-pcie-32gb", "a100-pcie-40gb")
    first, second = (find_device(name) for name in names)
    kernels = elementwise_kernels()
    table = load_efficiencies()
    rows = timed(first, kernels, table=table) + timed(second, kernels, table=table, slowdown=2.0)
    fitted = fit_table(rows, "test")
    (error,) = fitted.held_out
    assert error.num_devices == 2
    assert error.num_rows == 80
    # Each is predicted at the other's share of its bandwidth: about twice too fast or too slow.
    assert 0.4 < error.p90_error_fraction < 1.5
    assert held_out_errors(fitted, rows) == fitted.held_out


def test_same_chip_is_left_out_together() -> None:
    rows: list[TimedKernel] = []
    for name in ("v100-pcie-32gb", "v100-sxm2-16gb", "t4"):
        rows += timed(find_device(name), elementwise_kernels())
    # T4 taught by two V100, and each V100 by the T4 alone.
    (error,) = fit_table(rows, "test").held_out
    assert error.num_devices == 3
    assert not error.is_other_line


HEADERS = {
    "ops_neusight_ln_softmax.csv": "source,device,op,B,H,dtype,phase,latency_ms,kernel",
    "ops_neusight_amd_vec.csv": "source,device,op,B,H,dtype,phase,latency_ms,kernel",
    "ops_deepbench_gemm.csv": (
        "source,device,op,M,N,K,transA,transB,dtype,phase,latency_ms,suite,env"
    ),
    "ops_deepbench_conv2d.csv": (
        "source,device,op,N,Cin,H,W,Cout,kh,kw,pad_h,pad_w,stride_h,stride_w,dtype,phase,"
        "latency_ms,suite,algo,env"
    ),
    "ops_deepbench_rnn.csv": (
        "source,device,op,hidden,batch,timesteps,dtype,phase,latency_ms,suite,env"
    ),
    "ops_neusight_transformer_trace.csv": (
        "source,device,model,mode,seq,batch,op,name,input_shapes,output_shape,dtype,fw_ms,bw_ms,"
        "accgrad_ms"
    ),
    "apple_ops.csv.gz": "source,device,backend,op,args,dtype,phase,latency_ms,src",
    "achieved_peaks.csv": "source,url_or_repo,commit,device,test,value,unit",
}


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the small tables, a row or two each."""
    rows = {
        "ops_neusight_ln_softmax.csv": [
            "neusight,T4,softmax,64,64,fp32,fw,0.03,k",
            "neusight,T4,softmax,65536,512,fp32,fw,1.03,k",
        ],
        "ops_neusight_amd_vec.csv": ["neusight,Instinct MI100,add,64,64,fp32,fw,0.02,k"],
        "ops_deepbench_gemm.csv": [
            "deepbench,V100 (DGX-1),gemm,4096,7000,2048,T,N,fp16-in/tensorcore-mixed,fw,1.1,,C",
            "deepbench,V100 (DGX-1),gemm,35,16,64,N,N,fp32,fw,0.011,,C",
            "deepbench,CPU Xeon Phi 7250 (KNL),gemm,4096,7000,2048,N,N,fp32,fw,30,,M",
        ],
        "ops_deepbench_conv2d.csv": [
            "deepbench,T4,conv2d,8,64,56,56,128,3,3,1,1,1,1,fp32,fw,1.5,,,C",
            "deepbench,T4,conv2d,8,64,56,56,128,3,3,1,1,2,2,fp32,bw_weight,0.9,,,C",
            "deepbench,T4,conv2d,8,3,224,224,64,7,7,3,3,2,2,fp32,bw_input,9,,,C",
        ],
        "ops_deepbench_rnn.csv": [
            "deepbench,V100 (DGX-1),rnn_lstm,512,16,25,fp32,fw,1.095,,C",
            "deepbench,V100 (DGX-1),rnn_lstm,512,16,25,fp32,bw_weight,0.165,,C",
        ],
        "ops_neusight_transformer_trace.csv": [],
        "apple_ops.csv.gz": [
            "mlx,M1 Max (64GB) mlx 0.2,torch mps,MatMul,dim=1000000x64 dim=64x1024,fp32,fw,40.33,",
            "mlx,M1 Max (64GB) mlx 0.2.0,torch cpu,MatMul,dim=1000000x64 dim=64x1024,fp32,fw,372,",
            "mlx,M1 Max (64GB) mlx 0.2.0,torch mps,SumAll,dim=1000000,fp32,fw,0.36,",
            "mlx,M2 (),torch mps,Sum,dim=64x128x128x128 axi=0,fp32,fw,8.1,",
        ],
        "achieved_peaks.csv": [
            'te42kyfo,u,c,A40,"stream_scale (best block size, fp64)",658.0,GB/s',
            "mli,u,c,V100,matmul n=8192 fp16 (best over batch sizes),95.0,TFLOP/s",
        ],
    }
    for name, lines in rows.items():
        content = ("\n".join([HEADERS[name], *lines]) + "\n").encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    monkeypatch.setattr(
        "lab.timed_tables._IDLE_TABLES",
        tuple(item for item in _IDLE_TABLES if item[0] in rows),
    )
    return tmp_path


def test_rows_become_kernels(tables: Path) -> None:
    by_family: dict[tuple[str, str], TimedKernel] = {
        (row.device.id, f"{row.kernel.family}/{row.kernel.variant}"): row
        for row in read_tables(tables)
    }
    softmax = by_family["t4", "softmax/persistent"]
    # The fastest call takes 30 µs (the 2nd percentile lies 2 % of the way up), 70 % of it exposed.
    assert softmax.time_ns == pytest.approx(1.03e6 - 0.7 * (30_000 + 0.02 * 1e6))
    gemm = by_family["v100-sxm2-16gb", "gemm/"].kernel
    assert gemm.flop in (2.0 * 4096 * 7000 * 2048, 2.0 * 8192**3)
    assert by_family["t4", "convolution/winograd"].kernel.flop == 2.0 * 8 * 56**2 * 128 * 64 * 9
    weight = by_family["t4", "convolution/backward_weight"].kernel
    assert weight.flop == 2.0 * 8 * 28**2 * 128 * 64 * 9
    lstm = by_family["v100-sxm2-16gb", "recurrent/lstm"]
    assert lstm.kernel.launches == 25
    assert len(lstm.others) == 1
    apple = by_family["m1-max", "gemm/"]
    assert apple.kernel.flop == 2.0 * 1_000_000 * 64 * 1024
    assert apple.time_ns == pytest.approx(40.33e6 - 0.22e6)
    stream = by_family["a40", "elementwise/"]
    assert stream.kernel.num_bytes / stream.time_ns == pytest.approx(658.0)


def test_rows_that_measure_something_else_are_left_out(tables: Path) -> None:
    rows = read_tables(tables)
    # Left out: the idle calls, the product shorter than a launch, the Xeon Phi, the gradient of
    # an image, the recurrent layer's weight gradient, and of Apple's chips the CPU, the call that
    # is as short as any, and the reduction, which no other table times.
    assert len(rows) == 1 + 0 + 1 + 2 + 1 + 1 + 2


@pytest.mark.parametrize(
    ("name", "args", "read_numbers", "written_numbers"),
    [
        ("Argmax", "dim=64x1024x128 axi=1", 64 * 1024 * 128, 64 * 128),
        ("Concat", "dim=100x64 dim=100x32 axi=1", 9_600, 9_600),
        ("Conv2d", "dim=10x256x256x12 dim=8x3x3x12", 10 * 256**2 * 12 + 8 * 9 * 12, 80 * 254**2),
        ("Gather", "dim=64x256 dim=1000", 1000 * 256 + 2 * 1000, 1000 * 256),
        ("Linear", "dim=100x10x32 dim=32x64 dim=64", 1000 * 32 + 33 * 64, 1000 * 64),
        ("SeLU", "dim=128x16x1024", 2**21, 2**21),
        ("SumAll", "dim=1000x128", 128_000, 1),
    ],
)
def test_operators_of_apple_by_hand(
    name: str, args: str, read_numbers: int, written_numbers: int
) -> None:
    (op,) = apple_ops({"op": name, "args": args})
    (kernel,) = lower(op, Settings()).kernels
    assert (kernel.read_bytes, kernel.write_bytes) == (4 * read_numbers, 4 * written_numbers)


def test_attention_of_apple_is_three_operators() -> None:
    shapes = "dim=64x8x16x1024 dim=64x8x64x1024 dim=64x8x64x1024"
    ops = apple_ops({"op": "ScaledDotProductAttention", "args": shapes})
    assert [op.outputs[0].shape for op in ops] == [
        (512, 16, 64), (64, 8, 16, 64), (512, 16, 1024),
    ]  # fmt: skip


def test_a_table_may_hold_both_kinds_of_products() -> None:
    sizes = {"B": "8", "M": "64", "N": "32", "K": "16"}
    batched = product_op({"op": "bmm", **sizes})
    assert [spec.shape for spec in batched.inputs] == [(8, 64, 32), (8, 32, 16)]
    linear = product_op({"op": "linear", **sizes})
    assert linear.outputs[0].shape == (8 * 64, 16)


def test_missing_table_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_tables(tmp_path)


def test_command_writes_a_table_that_loads(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "efficiency.json"
    rows = (tables / "ops_deepbench_gemm.csv").read_text()
    more = "\n".join(
        f"deepbench,V100 (DGX-1),gemm,{1024 * i},2048,1024,N,N,fp32,fw,{0.31 * i},,C"
        for i in range(1, 40)
    )
    (tables / "ops_deepbench_gemm.csv").write_text(rows + more + "\n")
    (tables / "ops_deepbench_rnn.csv").write_text(HEADERS["ops_deepbench_rnn.csv"] + "\n")
    for name in ("ops_neusight_ln_softmax.csv", "ops_deepbench_conv2d.csv", "achieved_peaks.csv"):
        (tables / name).write_text(HEADERS[name] + "\n")
    apple = "apple_ops.csv.gz"
    (tables / apple).write_bytes(gzip.compress(f"{HEADERS[apple]}\n".encode()))
    lines = [line for line in rows.splitlines() if "fp16" not in line]
    (tables / "ops_deepbench_gemm.csv").write_text("\n".join(lines) + "\n" + more + "\n")
    command = ["efficiency", str(tables), "-o", str(output)]
    assert main(command) == 0
    table = msgspec.json.decode(output.read_bytes(), type=EfficiencyTable)
    (device,) = table.devices
    assert device.device == "v100-sxm2-16gb"
    # 2 × 1024 × 2048 × 1024 FLOP in 0.31 ms are 13.9 TFLOP/s of 15.7.
    assert device.families[0].median_error_fraction < 0.1
    assert capsys.readouterr().out == describe_efficiencies(table)
    assert output.read_bytes() == efficiencies_document(table)
    assert main(command) == 3, "no file is replaced without --force"
    assert "--force" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0


def test_command_prints_the_errors_of_the_table_that_ships(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["errors"]) == 0
    assert capsys.readouterr().out == describe_efficiencies(load_efficiencies())


def test_command_without_the_tables_says_which_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["efficiency", str(tmp_path), "-o", str(tmp_path / "out.json")]
    assert main(command) == 3
    assert f"there is no table {tmp_path}" in capsys.readouterr().err.replace("\n", "")
