import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import sys
import numpy as np
from breakeven.configure.patching import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "kept":
    keep_freed_memory()
np.ones(10_000_000)
before = faults()
np.ones(10_000_000)
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told so")
def test_freed_memory_is_used_again_without_new_pages() -> None:
    def num_faults(mode: str) -> int:
        command = [sys.executable, "-c", PROGRAM, mode]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    num_pages = 10_000_000 * 8 // 4096
    # Where pages are huge, fewer are faulted in: the two are compared with each other.
    assert num_faults("returned") > 20
    assert num_faults("kept") < min(num_pages, num_faults("returned")) / 2
