"""Run a block, or a script to its end, on GPUs that are not there.

Started as ``python -P -m breakeven.capture._pretended_gpus NUM_DEVICES SCRIPT [ARGUMENT ...]``.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from breakeven.capture._pretended_cuda import pretended_cuda
from breakeven.capture._refusing_recorder import RefusingRecorder
from breakeven.errors import UsageError


@contextmanager
def pretended_gpus(num_devices: int = 1) -> Iterator[None]:
    """Let torch behave inside as on a machine with CUDA GPUs, whatever this machine has.

    Tensors know where they are and where results go, mixing devices raises as it does there, and
    ``nn.DataParallel`` splits batches; everything is computed on the CPU. ``torch.compile`` is
    ignored. Afterwards torch is as before; tensors made inside are ordinary tensors of the CPU.

    Args:
        num_devices: How many GPUs there are: ``cuda:0``, ``cuda:1`` and so on.

    Raises:
        UsageError: There is to be less than one.
    """
    if num_devices < 1:
        raise UsageError(f"{num_devices} GPUs cannot be pretended", hint="ask for 1 or more")
    with pretended_cuda(RefusingRecorder(num_devices), lambda: None):
        yield


def main() -> None:
    """Run a script to its end, as ``python SCRIPT`` does."""
    num_devices, script = int(sys.argv[1]), sys.argv[2]
    sys.argv = sys.argv[2:]
    sys.path.insert(0, str(Path(script).resolve().parent))
    with pretended_gpus(num_devices):
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
