"""A process to start warm: does what its first argument says."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence


def main(words: Sequence[str]) -> int:
    """Tell about this process, or wait to be killed."""
    if words[0] == "wait":
        print("waiting", flush=True)
        time.sleep(60)
    print("pytorch_lightning" in sys.modules, os.getcwd(), os.environ["MARK"], words[1:])
    print("and an error", file=sys.stderr)
    print(os.getsid(0) == os.getpid(), sys.argv[1:])
    return 7
