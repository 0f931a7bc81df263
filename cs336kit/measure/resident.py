"""The memory that this process occupies now, as the operating system counts it."""

import os
from pathlib import Path


def resident_bytes() -> int:
    """Bytes of this process that lie in memory: its resident set, memory-mapped pages that it has touched included.

    Read from Linux's /proc, elsewhere from psutil. Where neither is there, RuntimeError says so.
    """
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    try:
        import psutil
    except ImportError:
        message = "the resident set is read from /proc or by psutil, and neither is here: pip install psutil."
        raise RuntimeError(message) from None
    return psutil.Process().memory_info().rss
