from __future__ import annotations

import os
import platform
import shutil


def machine_report() -> str:
    """Report on this machine."""
    disk = shutil.disk_usage("/")
    load = ", ".join(f"{one:.2f}" for one in os.getloadavg())
    return "\n".join(
        [
            f"Python {platform.python_version()} on {platform.system()}, {os.cpu_count()} processors",
            f"Load over 1, 5 and 15 minutes: {load}",
            f"Disk: {disk.free / 1e9:.0f} of {disk.total / 1e9:.0f} GB free",
        ]
    )
