"""Run every benchmark beside this file, one after the other.

``make bench ARGS=kernel`` picks those whose name has the word.

Each benchmark is a script of its own that prints a table and takes a few seconds.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NOT_BENCHMARKS = {"run_all.py", "mutants.py"}


def main(words: list[str]) -> int:
    folder = Path(__file__).parent
    scripts = [path for path in sorted(folder.glob("*.py")) if path.name not in NOT_BENCHMARKS and path.name[0] != "_"]
    chosen = [path for path in scripts if not words or any(word in path.stem for word in words)]
    if not chosen:
        print(
            f"No benchmark has {' or '.join(words)} in its name; there are {', '.join(path.stem for path in scripts)}."
        )
        return 2
    worst = 0
    for path in chosen:
        print(f"\n== {path.stem}", flush=True)
        worst = max(worst, abs(subprocess.call([sys.executable, str(path)])))
    return min(worst, 1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
