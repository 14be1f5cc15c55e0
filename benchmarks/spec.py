"""How long checking a file takes, against a plain parse of it: the corpus of bad files, and files made to be slow.

The loader promises never to take longer than ten times a plain parse of a file within its size limits. Medians of
interleaved rounds; exits 1 where the promise is broken.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from tests.spec.corpus_reader import cases

from agent_engine.spec.document import MAX_BYTES
from agent_engine.spec.load import examine_text

ROUNDS = 3
LIMIT = 10.0
BASE = "system: {name: x}\nagents: {a: {}}\ngraph: {a: }\n"


def slow_files() -> dict[str, str]:
    """Files of nearly the largest size, each hard on one check."""
    room = MAX_BYTES - 2_000
    lines = {
        "unknown keys": "  key{n}: x\n",
        "unknown tools": "    - tool{n}x\n",
        "unknown events": "  before_tol{n}: []\n",
        "hooks": "  - {{command: c, nam: n{n}}}\n",
        "tools": "  tool{n}: Does.\n",
        "agents": "  agent{n}: {{}}\n",
    }
    heads = {
        "unknown keys": BASE + "execution:\n",
        "unknown tools": "system: {name: x}\ngraph: {a: }\nagents:\n  a:\n    tools:\n",
        "unknown events": BASE + "hooks:\n",
        "hooks": BASE + "hooks:\n  before_tool:\n",
        "tools": BASE + "tools:\n",
        "agents": "system: {name: x}\ngraph: {a: }\nagents:\n  a: {}\n",
    }
    limits = {"hooks": 1_900, "agents": 4_000, "tools": 4_000}
    made = {}
    for name, line in lines.items():
        text = heads[name]
        for n in range(limits.get(name, 9_000)):
            if len(text) > room:
                break
            text += line.format(n=n)
        made[name] = text
    pieces = {
        "dots": "a.",
        "urls": "http://a:",
        "bearer": "Bearer a",
        "pem": "-----BEGIN ",
        "variables": "${A:-",
        "assignments": "&a=",
        "jwt": "eyJaaaaaaaa.",
        "blanks": "x ",
        "quotes": "sk-ant-",
    }
    for name, piece in pieces.items():
        made[f"text of {name}"] = BASE + f"tools: {{t: '{piece * (room // len(piece))}'}}\n"
    url = "${A:-" * (room // 5)
    made["a url of variables"] = BASE + f"mcps: {{m: {{url: '{url}'}}}}\n"
    return made


def plain(text: str) -> None:
    try:
        YAML(typ="safe", pure=True).load(text)
    except YAMLError:
        pass
    except Exception:  # noqa: BLE001  a plain parse may fail in any way; only its time counts
        pass


def medians(text: str) -> tuple[float, float]:
    times: dict[str, list[float]] = {"plain": [], "checked": []}
    work: dict[str, Callable[[], object]] = {
        "plain": lambda: plain(text),
        "checked": lambda: examine_text(text, "/nowhere/agents.yaml", environ={}),
    }
    for _ in range(ROUNDS):
        for name, do in work.items():
            start = time.perf_counter()
            do()
            times[name].append(time.perf_counter() - start)
    return statistics.median(times["plain"]), statistics.median(times["checked"])


def main() -> int:
    plain(BASE)
    examine_text(BASE, "/nowhere/agents.yaml", environ={})
    rows = [(f"corpus: {case.name}", *medians(case.text)) for case in cases("shapes", "meaning")[::5]]
    worst = sorted(rows, key=lambda row: row[2] / row[1])[-3:]
    rows = [*worst, *((name, *medians(text)) for name, text in slow_files().items())]
    print(f"{'file':<44}{'plain parse':>14}{'checked':>12}{'ratio':>8}")
    broken = 0
    for name, parse, checked in rows:
        ratio = checked / parse
        broken += ratio > LIMIT
        print(f"{name[:43]:<44}{parse * 1000:>11.1f} ms{checked * 1000:>9.1f} ms{ratio:>8.2f}")
    print(f"{'over the limit of 10: ' + str(broken) if broken else 'every file is under ten times its plain parse'}")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
