"""Break the dispatcher on purpose, one branch or comparison at a time, and see that some test fails for each.

``make mutants`` breaks everything and takes about an hour; ``make mutants ARGS="plan quick"`` only those modules, and
``ARGS="dispatch --line 150-200"`` only some lines. Survivors are listed; exit code 1 where there are any that are not
known to change nothing (``SAME`` below). Works on a copy; nothing in the tree is touched.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOOKS = Path("src/agent_engine/hooks")
MODULES = (
    "plan",
    "quick",
    "told",
    "dispatch",
    "tally",
    "offload",
    "together",
    "folding",
    "callbacks",
    "limits",
    "rows",
    "runner",
)
TESTS = (
    "test_plan.py", "test_callbacks.py", "test_folding.py", "test_dispatch.py", "test_tally.py", "test_runner.py",
    "test_limits.py", "test_cancel_scopes.py", "test_together.py", "test_told.py", "test_quick.py",
    "test_dispatch_limits.py", "test_dispatch_properties.py",
)  # fmt: skip
SECONDS = 180.0
"""For one run of the tests; a mutant that makes them hang has been noticed."""

_PLAINLY = "value is not None and value is not True and (value is not {0})"
_OR = "value is not None or value is not True or value is not {0}"
SAME: dict[str, str] = {
    "quick: self._paused  ->  not self._paused": "only how long a loop stands still",
    "quick: not done  ->  not not done": "only how long a loop stands still",
    "plan: entry.kind == 'worker'  ->  entry.kind != 'worker'": "the same neighbours",
    "dispatch: entry.live and entry.sequential  ->  entry.live or entry.sequential": "restores what nobody has edited",
    "limits: self._groups and (not _GROUPS_COUNT_RIGHT)  ->  self._groups or not _GROUPS_COUNT_RIGHT": "nothing to do",
    "together: value is None or value is True  ->  value is None and value is True": "takes longer",
    "together: now is known or _equal(now, known)  ->  now is known and _equal(now, known)": "takes longer",
    **{
        f"quick: {_PLAINLY.format(name)}  ->  {_OR.format(name)}": "every answer is read in full, which takes longer"
        for name in ("payload", "shared")
    },
}
"""Mutants that change nothing but the cost, by what is printed for them, with the reason."""

FLIPS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
}  # fmt: skip


_PLACES = (ast.Compare, ast.If, ast.IfExp, ast.BoolOp, ast.Return)


@dataclass(frozen=True)
class Mutant:
    """One change: the module, where, what stood there and what stands there now, and the whole changed source."""

    module: str
    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        return f"{self.module}: {self.before}  ->  {self.after}"


def mutants_of(module: str, source: str) -> Iterator[Mutant]:
    """Every mutant of one module: each comparison turned, each condition negated, each and/or exchanged."""
    for number, place in enumerate(ast.walk(ast.parse(source))):
        if not isinstance(place, _PLACES):
            continue
        for kind in ("compare", "negate", "junction", "constant"):
            tree = ast.parse(source)
            node = next(itertools.islice(ast.walk(tree), number, None))
            assert isinstance(node, _PLACES)
            before = ast.unparse(getattr(node, "test", node))
            if _mutate(node, kind):
                after = ast.unparse(getattr(node, "test", node))
                changed = ast.unparse(ast.fix_missing_locations(tree))
                yield Mutant(module, place.lineno, before, after, changed)


def _mutate(node: ast.AST, kind: str) -> bool:
    if kind == "compare" and isinstance(node, ast.Compare) and len(node.ops) == 1:
        node.ops = [FLIPS[type(node.ops[0])]()]
        return True
    # A condition that is one comparison is turned already.
    if kind == "negate" and isinstance(node, ast.If | ast.IfExp) and not isinstance(node.test, ast.Compare):
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return False
        node.test = ast.UnaryOp(ast.Not(), node.test)
        return True
    if kind == "junction" and isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return True
    if kind != "constant" or not isinstance(node, ast.Return) or not isinstance(node.value, ast.Constant):
        return False
    if not isinstance(node.value.value, bool):
        return False
    node.value = ast.Constant(not node.value.value)
    return True


def survives(mutant: Mutant) -> bool:
    """Whether every test passes although the kernel is broken."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        home = Path(folder)
        shutil.copytree(ROOT / "src", home / "src", ignore=shutil.ignore_patterns("__pycache__"))
        (home / HOOKS / f"{mutant.module}.py").write_text(mutant.source)
        for name in ("hooks", "fakes"):
            shutil.copytree(ROOT / "tests" / name, home / "tests" / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "tests/conftest.py", home / "tests/conftest.py")
        shutil.copy(ROOT / "pyproject.toml", home)
        own = f"test_{mutant.module}.py"
        tests = [f"tests/hooks/{name}" for name in sorted(TESTS, key=lambda name: name != own)]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout", "30", *tests]
        environment = {**os.environ, "PYTHONPATH": str(home / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command,
                cwd=home,
                env=environment,
                timeout=SECONDS,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", help=f"of {', '.join(MODULES)}; all where none is named")
    parser.add_argument("--line", help="only these lines: 120 or 120-180")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    chosen = parser.parse_args()
    first, _, last = (chosen.line or "1-99999").partition("-")
    lines = range(int(first), int(last or first) + 1)
    mutants = [
        mutant
        for module in chosen.modules or MODULES
        for mutant in mutants_of(module, (ROOT / HOOKS / f"{module}.py").read_text())
        if mutant.line in lines
    ]
    unchanged = Mutant("plan", 0, "nothing", "nothing", (ROOT / HOOKS / "plan.py").read_text())
    if not survives(unchanged):
        print("The tests fail without any mutant; they have to pass first.")
        return 2
    print(f"{len(mutants)} mutants", flush=True)
    left, began = [], time.monotonic()
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for number, (mutant, alive) in enumerate(zip(mutants, pool.map(survives, mutants), strict=True), 1):
            if alive and str(mutant) not in SAME:
                left.append(mutant)
                print(f"  survives  {mutant.module}.py:{mutant.line}  {mutant.before}  ->  {mutant.after}", flush=True)
            elif number % 25 == 0:
                print(f"  {number} of {len(mutants)}, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{len(mutants) - len(left)} of {len(mutants)} noticed")
    return 1 if left else 0


if __name__ == "__main__":
    raise SystemExit(main())
