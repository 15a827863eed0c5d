"""What a worker does about memory: freed blocks are used again without asking the system."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import torch
from optuna_taylorglo.training.runtime import keep_freed_memory

if {keep}:
    assert keep_freed_memory()

def fill():
    for _ in range(10):
        torch.ones(2**24)  # 64 MB

fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(*, keep: bool) -> int:
    """Page faults of ten allocations of 64 MB that a process has made before."""
    program = PROGRAM.format(keep=keep)
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return int(answer.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_freed_blocks_are_kept() -> None:
    assert page_faults(keep=True) < 100
    assert page_faults(keep=False) > 200
