"""RUN007: the machine has an NVIDIA GPU, and its torch cannot use it.

What it does:
    Finds a torch without CUDA on a machine that shows an NVIDIA device.

Why it costs time:
    Everything runs on the CPU, whatever the script says.

Evidence:
    Training that took days took hours with the right package in public reports.

Fix:
    Install a build of torch with CUDA, as its site says for the driver at hand.

    ```python
    # pip install torch --index-url https://download.pytorch.org/whl/cpu
    torch.cuda.is_available()  # False
    ```

    ```python
    # pip install torch --index-url https://download.pytorch.org/whl/cu128
    torch.cuda.is_available()  # True
    ```

Known limits:
    A driver that is too old for the build is not seen.
"""

from __future__ import annotations

from breakeven.doctor.rule import Case, Found, Occurrence

CAUSE = "HW_ENV"


def detect(case: Case) -> Found:
    if not case.facts.has_nvidia_device or case.facts.has_cuda_build:
        return
    version = f"torch {case.trace.torch_version}" if case.trace.torch_version else "torch"
    yield Occurrence(
        title="this machine has an NVIDIA GPU, and its torch was built without CUDA",
        fix="install a build of torch with CUDA",
        evidence=f"{version} has no CUDA; an NVIDIA device is there",
    )
