"""Refuse what CUDA refuses, for a script that runs to its end on pretended devices."""

from __future__ import annotations

from typing import Any

import torch

from breakeven.capture.cuda_names import CudaDevices
from breakeven.capture.device_map import HOST, DeviceMap
from breakeven.capture.eager_tensor import tensors_in
from breakeven.capture.op_schema import find_stray, may_mix
from breakeven.capture.origins import Origin
from breakeven.capture.recorder import StepRecorder


class RefusingRecorder(StepRecorder):
    """Records nothing, and raises where a recorder of steps notes a fault.

    Args:
        num_devices: GPUs that are pretended.
    """

    def __init__(self, num_devices: int) -> None:
        super().__init__(DeviceMap(), cuda=CudaDevices(num_devices), is_recording=False)

    def check_places(self, base_name: str, arguments: tuple[Any, ...]) -> None:
        """Raise where an operator's inputs are on different devices.

        Raises:
            RuntimeError: In the words of torch.
        """
        places = [self.devices.device_of(tensor) for tensor in tensors_in(arguments)]
        on_device = list(dict.fromkeys(place for place in places if place != HOST))
        if find_stray(base_name, arguments, self.devices) is not None:
            at_odds = sorted((on_device[0], HOST), key=places.index)
        elif len(on_device) > 1 and not may_mix(base_name):
            at_odds = on_device[:2]
        else:
            return
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{at_odds[0]} and {at_odds[1]}!"
        )

    def refuse_array(self, tensor: torch.Tensor) -> None:
        """Raise, as NumPy cannot read the memory of a device.

        Raises:
            TypeError: In the words of torch.
        """
        raise TypeError(
            f"can't convert {self.devices.device_of(tensor)} device type tensor to numpy. Use "
            "Tensor.cpu() to copy the tensor to host memory first."
        )

    def current_origin(self) -> Origin:
        """Return nothing: no event is kept that would have an origin."""
        return Origin()
