"""Convolutions of few channels per group, as today's libraries compute them on matrix units.

A product for each group leaves most of a tile empty: cuDNN 7 did that. Later ones put groups beside
each other until a tile is full, and multiply what crosses from one group to another by zeros. The
time is that of groups of so many channels then, however few they have: under torch 2.4 a ResNeXt
of 32 groups of 8 takes what one of 64 groups of 4 takes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from breakeven.cost.efficiency import EfficiencyTable
from breakeven.cost.family_times import KernelTimes, arithmetic_of, kernel_times
from breakeven.cost.kernel import Kernel
from breakeven.device import DeviceSpec

# Channels of the groups that share a tile. Source: timm's ResNeXts in inference under autocast,
# torch 2.4, in both memory formats, against its ResNets: 64 fits the RTX 3090 and the RTX 4090
# alike, each without the other; 32 takes 1.2 times as long, 128 1.5 times.
_PACKED_CHANNELS = 64


def pack_groups(
    times: KernelTimes,
    kernels: Sequence[Kernel],
    devices: Sequence[DeviceSpec],
    *,
    efficiencies: EfficiencyTable,
) -> None:
    """Set the times of grouped convolutions to those with packed groups, where these are faster.

    Args:
        times: Of the kernels on the devices; changed in place.
        kernels: All kernels.
        devices: All devices; without matrix units nothing is packed.
        efficiencies: Calibration.
    """
    rows = [row for row, kernel in enumerate(kernels) if kernel.variant.startswith("grouped")]
    if not rows:
        return
    packed = [_packed(kernels[row]) for row in rows]
    packed_ns = kernel_times(packed, devices, efficiencies=efficiencies).time_ns
    is_packed = [[arithmetic_of(kernel, device) == "tensor" for device in devices]
                 for kernel in packed]  # fmt: skip
    plain_ns = times.time_ns[rows]
    times.time_ns[rows] = np.where(is_packed, np.minimum(packed_ns, plain_ns), plain_ns)


def _packed(kernel: Kernel) -> Kernel:
    """Return the same convolution as one product, over the channels that share a tile."""
    is_weight = kernel.variant.endswith("backward_weight")
    channels = kernel.m if is_weight else kernel.n
    num_together = max(1, min(kernel.batch, _PACKED_CHANNELS // max(1, channels)))
    changes = (
        {"m": kernel.m * kernel.batch, "n": kernel.n * num_together}
        if is_weight
        else {"n": kernel.n * kernel.batch, "k": kernel.k * num_together}
    )
    return msgspec.structs.replace(kernel, **changes, batch=1, flop=kernel.flop * num_together)
