"""Made-up measured hosts for tests."""

from __future__ import annotations

from breakeven.device import HostCalibration, HostFigure, HostSpec

HOST = HostSpec(
    id="here",
    name="Made-up CPU",
    op_ns=2_000.0,
    python_ns=3_000.0,
    view_python_ns=1_500.0,
    autograd_ns=500.0,
    backward_ns=4_000.0,
    backward_call_ns=30_000.0,
    foreach_ns=3_000.0,
    foreach_tensor_ns=100.0,
    view_ns=800.0,
    source="measured on a made-up CPU",
)


def calibration(
    *, num_rounds: int = 600, device_name: str = "", **medians_ns: float
) -> HostCalibration:
    """Return a calibration of a fast host, updated by these figures."""
    medians = {
        "op": 1_020.0, "autograd": 438.0, "module": 649.0, "view": 798.0, "backward": 1_700.0,
        "backward_call": 33_475.0, "foreach": 2_142.0, "foreach_tensor": 1_339.0,
        **medians_ns,
    }  # fmt: skip
    figures = tuple(
        HostFigure(
            code=code,
            title=f"call of {code}",
            median_ns=median_ns,
            low_ns=0.9 * median_ns,
            high_ns=1.2 * median_ns,
            used_for="" if code == "layer_norm" else "steps",
        )
        for code, median_ns in medians.items()
    )
    return HostCalibration(
        host=HOST, figures=figures, num_rounds=num_rounds, device_name=device_name
    )
