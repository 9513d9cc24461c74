"""Run a block, or a script to its end, on GPUs that are not there.

Started as ``python -P -m`` this module, with ``NUM_DEVICES SCRIPT [ARGUMENT ...]``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from breakeven.capture.pretend.pretended_cuda import pretended_cuda
from breakeven.capture.process.as_main import run_as_main
from breakeven.capture.record.recorder import RefusingRecorder
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
    with pretended_gpus(int(sys.argv[1])):
        run_as_main(sys.argv[2], sys.argv[3:], is_module=False)


if __name__ == "__main__":
    main()
