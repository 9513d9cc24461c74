"""What only a CUDA device knows: TF32, cuDNN's search, and data that stays on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from breakeven.configure.changed_loaders import ChangedLoaders
from breakeven.configure.patching import Patches
from breakeven.configure.tensor_rows import row_tensors, without_subsets

# Of the device's free memory: the training itself needs the rest.
_MAX_DATA_FRACTION = 0.5


class allowed_tf32(Patches):  # noqa: N801 - a context manager reads as a verb
    """Inside, float32 matrix products and convolutions may use TF32, unless the script objects."""

    @property
    def num_applied(self) -> int:
        """Return 1 as long as the script has not set another precision."""
        return int(torch.get_float32_matmul_precision() == "high")

    def __enter__(self) -> allowed_tf32:
        super().__enter__()
        self.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("high")
        self.callback(setattr, torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)
        torch.backends.cudnn.allow_tf32 = True
        return self


class benchmarked_cudnn(Patches):  # noqa: N801 - a context manager reads as a verb
    """Inside, cuDNN tries its algorithms for each shape and keeps the fastest."""

    @property
    def num_applied(self) -> int:
        """Return 1 as long as the script has not switched it off."""
        return int(torch.backends.cudnn.benchmark)

    def __enter__(self) -> benchmarked_cudnn:
        super().__enter__()
        self.callback(setattr, torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
        torch.backends.cudnn.benchmark = True
        return self


class data_on_device(ChangedLoaders):  # noqa: N801 - a context manager reads as a verb
    """Inside, a data set of tensors is copied to the CUDA device when a DataLoader gets it.

    Its batches are taken there, at once and in the order in which the script asks for them. Worker
    processes and pinned memory are for data that are somewhere else, and are left out.
    """

    def _change(self, given: dict[str, Any], loader: DataLoader[Any]) -> bool:
        dataset = without_subsets(given["dataset"])
        # A class of the script's own may use its tensors for more than samples.
        tensors = row_tensors(dataset) if type(dataset) is TensorDataset else ()
        is_own_collation = given.get("collate_fn") is not None
        if not tensors or is_own_collation or given.get("num_workers"):
            return False
        if not all(tensor.is_cuda for tensor in tensors):
            num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            if num_bytes > _MAX_DATA_FRACTION * torch.cuda.mem_get_info()[0]:
                return False
            self.callback(setattr, dataset, "tensors", tensors)
            dataset.tensors = tuple(tensor.cuda() for tensor in tensors)
        given["pin_memory"] = False
        return True
