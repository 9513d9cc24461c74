"""Calibrated GPUs made up for tests."""

from __future__ import annotations

from breakeven.cost import (
    GPU_CALIBRATION_VERSION,
    CalibratedMachine,
    Family,
    GpuCalibration,
    PrecisionEfficiency,
)
from breakeven.device import Precision

MACHINE = CalibratedMachine(
    gpu="Tesla T4",
    processor="Made-up CPU",
    num_cores=8,
    system="Linux",
    driver="CUDA 12.8, cuDNN 91002",
    torch_version="2.11.0",
    python_version="3.12.1",
    breakeven_version="0.1.0",
    date="2026-11-25",
)


def reached(
    compute_fraction: float,
    *,
    family: Family = Family.GEMM,
    precision: Precision = Precision.FP32,
    arithmetic: str = "vector",
    memory_fraction: float = 0.8,
    **fields: object,
) -> PrecisionEfficiency:
    """Return an efficiency without tile losses, updated by these fields."""
    return PrecisionEfficiency(
        family=family,
        precision=precision,
        arithmetic=arithmetic,
        compute_fraction=compute_fraction,
        memory_fraction=memory_fraction,
        **{
            "tile_loss": 1.0,
            "prologue_k": 4.0,
            "tiles": "8+",
            "num_rows": 15,
            "median_error_fraction": 0.04,
            "log_sigma": 0.08,
            **fields,
        },
    )


def calibrated(*families: PrecisionEfficiency, device: str = "t4", **fields) -> GpuCalibration:
    """Return a calibrated GPU, updated by these fields."""
    known = {
        "version": GPU_CALIBRATION_VERSION,
        "device": device,
        "machine": MACHINE,
        "is_quick": False,
        "launch": None,
        "families": families or (reached(0.8),),
    }
    return GpuCalibration(**known | fields)
