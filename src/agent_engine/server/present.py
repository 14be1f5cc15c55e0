"""Records made ready for the pages: bars on a time scale, asked beside happened, diffs, charts."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_engine.records.rows import bucket_ms
from agent_engine.records.views import Fold, Folds, HookStats, Record, RunDetail, Step, iso

if TYPE_CHECKING:
    from agent_engine.hooks.definition import HookDefinition

WIDTH = 1000
"""The width of a time scale in the units of its SVG."""

MARKS = {
    "allow": "✓", "modify": "✎", "ask": "?", "deny": "✗", "failed": "!", "none": "·",
}  # fmt: skip
"""decision → the mark that says it without colour."""

FOLD_FROM = 300
"""Hook runs in one run from which those that only allowed or looked are folded into a line a step."""

MOST_STEPS = 1000
"""Steps of one run on a page; earlier ones are a page of their own."""

MOST_HOOKS = 1000
"""Hook runs of one step that a page shows one by one."""

_UNSEEN = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
    "|(?<![^\0-\x7f])[\u200c\u200d\ufe00-\ufe0f]"
)
"""Characters that nobody sees, that turn around, hide or fake what stands beside them, and that no page can hold. What
joins or varies the letter before it is one of them only where that is of ASCII, which knows no such thing."""

_RANDOM = re.compile("[0-9a-f]{32}")
_LONGEST_ID = 40
_LONGEST_TEXT = 4000
_LONGEST_ASK = 200_000
_LONGEST_DIFF = 200


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of time: ``x`` and ``width`` are whole numbers from 0 to WIDTH; never too thin to see."""

    x: int
    width: int


@dataclass(slots=True)
class HookRow:
    """One hook run on the page of its run, or ``count`` of them that are alike; ``duration_ms`` is that of all.

    ``anchor``: where the page's head leads, at the first that refused (``denied``) or failed (``broke``).
    """

    record: Record
    bar: Bar
    kind: str
    mark: str
    word: str
    count: int
    duration_ms: float
    anchor: str | None = None


@dataclass(slots=True)
class StepRow:
    """One step on the page of its run."""

    step: Step
    depth: int
    bar: Bar
    asked: str | None
    outcome: str
    happened: str
    tone: str
    used: str | None
    result: str | None
    diff: list[tuple[str, str]]
    hooks: list[HookRow]
    quiet: int
    children: list[StepRow] = field(default_factory=list)


def decision_kind(record: Record) -> str:
    """What colours a hook run: its decision, or ``shadow``."""
    return "shadow" if record.shadow else record.decision


def decision_word(record: Record) -> str:
    """The decision in a word or two."""
    word = "observed" if record.decision == "none" else record.decision
    return f"shadow {word}" if record.shadow else word


def visible(text: str) -> str:
    """A text as a person may trust it: what would not be seen is written as its escape."""
    return _UNSEEN.sub(lambda found: repr(found[0])[1:-1], text)


def short(run_id: str, most: int = 12) -> str:
    """The beginning of an id that is random; one that somebody chose stays whole, unless it is very long."""
    if _RANDOM.fullmatch(run_id):
        return run_id[:most]
    return run_id if len(run_id) <= _LONGEST_ID else f"{run_id[: _LONGEST_ID - 1]}…"


def timeline(
    detail: RunDetail, changes: Mapping[int, Mapping[str, Any]], unfolded: int | None = None
) -> tuple[list[StepRow], list[HookRow]]:
    """The steps of a run as rows, nested, and the hook runs that stand at no step.

    ``changes``: captured payloads of hook runs, by number. ``unfolded``: the step whose hook runs are shown one by one.
    """
    scale = _Scale(detail, unfolded)
    rows = [_step_row(step, 0, scale, changes) for step in detail.roots]
    loose = hook_rows(detail, detail.records)
    hooks = [*loose, *(hook for row in flat(rows) for hook in row.hooks)]
    for anchor, found in (
        ("denied", (hook for hook in hooks if hook.record.refused)),
        ("broke", (hook for hook in hooks if hook.record.broke)),
    ):
        if (first := next(found, None)) is not None:
            first.anchor = anchor
    return rows, loose


def hook_rows(detail: RunDetail, records: Sequence[Record]) -> list[HookRow]:
    """Hook runs of a run as rows, one by one."""
    scale = _Scale(detail)
    return [_hook_row(line, scale) for record in records for line in Folds([record]).lines]


def flat(rows: Sequence[StepRow]) -> Iterator[StepRow]:
    """All rows, in the order they are shown."""
    for row in rows:
        yield row
        yield from flat(row.children)


def json_text(value: Any, most: int = _LONGEST_TEXT) -> str:
    """A captured value as a person reads it; cut where it is very long."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= most else f"{text[:most]}\n… {len(text) - most:,} more characters"


def ask_text(value: Any) -> str:
    """What a person is to approve: whole, since nobody can say yes to what is not there to read."""
    return json_text(value, _LONGEST_ASK)


def diff(before: Any, after: Any) -> list[tuple[str, str]]:
    """Lines of a diff between two captured values: (kind, text), kind one of ``same``, ``gone``, ``new``, ``gap``."""
    old, new = json_text(before).splitlines(), json_text(after).splitlines()
    if old == new:
        return []
    found: list[tuple[str, str]] = []
    for line in difflib.unified_diff(old, new, lineterm="", n=2):
        if line.startswith(("---", "+++")):
            continue
        kind = {"-": "gone", "+": "new", "@": "gap"}.get(line[:1], "same")
        found.append((kind, line[1:] if kind != "gap" else ""))
        if len(found) >= _LONGEST_DIFF:
            found.append(("gap", "…"))
            break
    return found[1:] if found and found[0][0] == "gap" else found


def record_diff(payloads: Mapping[str, Any], changed: Sequence[str]) -> list[tuple[str, str]]:
    """What a hook changed, where the payloads before and after were captured."""
    if "before" not in payloads or "after" not in payloads:
        return []
    before, after = payloads["before"], payloads["after"]
    if isinstance(before, dict) and isinstance(after, dict):
        names = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
        names = names or list(changed)
        before = {name: before.get(name) for name in sorted(names)}
        after = {name: after.get(name) for name in sorted(names)}
    return diff(before, after)


@dataclass(slots=True)
class Histogram:
    """A small chart of a hook's latencies: bars, and where the percentiles stand."""

    bars: list[tuple[int, int, int]]
    ticks: list[tuple[int, str]]


def histogram(stats: HookStats, width: int = 160, height: int = 28) -> Histogram:
    """Bars as (x, y, height); about one for each 25 % of latency. Ticks are (x, name) of p50, p95 and p99."""
    if not stats.buckets:
        return Histogram([], [])
    low, high = min(stats.buckets), max(stats.buckets)
    low, high = max(0, low - 2), max(high + 2, low + 16)
    step = width / (high - low + 1)
    most = max(stats.buckets.values())
    bars = []
    for bucket, count in sorted(stats.buckets.items()):
        tall = max(1, round(count / most * height))
        bars.append((round((bucket - low) * step), height - tall, tall))
    ticks = []
    for share, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99")):
        at = next(bucket for bucket in sorted(stats.buckets) if bucket_ms(bucket) >= stats.percentile(share) - 1e-12)
        ticks.append((round((at - low + 0.5) * step), name))
    return Histogram(bars, ticks)


@dataclass(slots=True)
class HookLine:
    """One hook on the hooks page: as it is registered now, as the records know it, or both."""

    event: str
    name: str
    kind: str
    source: str
    mode: str
    priority: int
    policy: str
    flags: list[str]
    registered: bool
    matcher: str | None
    stats: HookStats | None
    chart: Histogram


def hook_lines(registered: Sequence[HookDefinition], stats: Sequence[HookStats]) -> dict[str, list[HookLine]]:
    """All hooks by event: the registered ones in the order they run, then those that only the records know."""
    known: dict[tuple[str, str], HookStats] = {}
    for one in stats:
        key = (one.event, one.hook_name)
        known[key] = _merged(known[key], one) if key in known else one
    lines: dict[str, list[HookLine]] = {}
    for hook in registered:
        event = str(hook.event)
        found = known.pop((event, hook.name), None)
        flags = [name for name in ("observe", "shadow", "inline") if getattr(hook, name)]
        mode = "sequential" if hook.runs_sequentially else "parallel"
        lines.setdefault(event, []).append(
            HookLine(
                event,
                hook.name,
                hook.kind,
                hook.source,
                mode,
                hook.priority,
                hook.failure_policy,
                flags,
                True,
                hook.matcher,
                found,
                histogram(found) if found is not None else Histogram([], []),
            )
        )
    for (event, name), one in known.items():
        flags = [flag for flag in ("observe", "shadow") if getattr(one, flag)]
        lines.setdefault(event, []).append(
            HookLine(
                event,
                name,
                one.hook_kind,
                one.source or "",
                one.mode,
                one.priority,
                one.policy or "",
                flags,
                False,
                None,
                one,
                histogram(one),
            )
        )
    return lines


def ago(at: float, now: float) -> str:
    """How long ago, in a word a person uses."""
    seconds = max(0.0, now - at)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return f"{int(seconds)} s ago"


def milliseconds(value: float | None) -> str:
    """A duration with as many digits as matter."""
    if value is None:
        return ""
    if value >= 60_000:
        return f"{value / 60_000:.1f} min"
    if value >= 1000:
        return f"{value / 1000:.2f} s"
    if 0 < value < 0.005:
        return "< 0.01 ms"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2f} ms"


def clock(at: float | None) -> str:
    return "" if at is None else iso(at).replace("T", " ")[:19]


class _Scale:
    """From times to places on the run's time scale."""

    def __init__(self, detail: RunDetail, unfolded: int | None = None) -> None:
        self.quiet = detail.quiet
        self.unfolded = unfolded
        self.start = detail.run.started_at
        self.run_waits = detail.run.status == "waiting"
        self.run_goes_on = detail.run.status in ("open", "waiting")
        ends = [
            step.started_at + (step.duration_ms or 0) / 1000 for step in detail.steps if step.started_at is not None
        ]
        ends += [record.at + record.duration_ms / 1000 for record in detail.records]
        if detail.run.ended_at is not None and detail.run.duration_ms is not None:
            ends.append(self.start + detail.run.duration_ms / 1000)
        self.span = max(max(ends, default=self.start) - self.start, 1e-3)

    def bar(self, at: float | None, duration_ms: float | None) -> Bar:
        if at is None:
            return Bar(0, 0)
        x = min(WIDTH - 4, max(0, round((at - self.start) / self.span * WIDTH)))
        width = max(4, round((duration_ms or 0) / 1000 / self.span * WIDTH))
        return Bar(x, min(width, WIDTH - x))


def _hook_row(line: Fold, scale: _Scale) -> HookRow:
    record = line.first
    return HookRow(
        record,
        scale.bar(line.since, (line.until - line.since) * 1000),
        decision_kind(record),
        MARKS.get(record.decision, "·"),
        decision_word(record),
        line.count,
        line.duration_ms,
    )


def _step_row(step: Step, depth: int, scale: _Scale, changes: Mapping[int, Mapping[str, Any]]) -> StepRow:
    asked, used, result = _captured(step, changes)
    if step.key == scale.unfolded:
        hooks = [_hook_row(line, scale) for record in step.records for line in Folds([record]).lines]
    else:
        hooks = [_hook_row(line, scale) for line in Folds(step.records).lines]
    cut_off = step.outcome == "open" and not scale.run_goes_on
    return StepRow(
        step,
        depth,
        scale.bar(step.started_at, step.duration_ms),
        None if asked is None else json_text(asked),
        "interrupted" if cut_off else step.outcome,
        "began, and no end of it is recorded" if cut_off else _happened(step, scale.run_waits),
        "failed" if cut_off else _tone(step, scale.run_waits),
        None if used is None or used == asked else json_text(used),
        None if result is None else json_text(result),
        diff(asked, used) if asked is not None and used is not None else [],
        hooks,
        scale.quiet.get(step.key, 0),
        [_step_row(child, depth + 1, scale, changes) for child in step.children],
    )


def _captured(step: Step, changes: Mapping[int, Mapping[str, Any]]) -> tuple[Any, Any, Any]:
    """What the model asked, what was used, and the result, from the step's own payloads or its hooks'."""
    asked, used, result = (step.payloads.get(which) for which in ("asked", "used", "result"))
    if step.kind != "tool":
        return asked, used, result
    for record in step.records:
        found = changes.get(record.seq)
        if not found or record.event not in ("before_tool", "after_tool"):
            continue
        before, after = found.get("before"), found.get("after", found.get("before"))
        if record.event == "before_tool" and isinstance(before, dict) and isinstance(after, dict):
            asked = before.get("tool_input") if asked is None else asked
            if not record.shadow and not record.observe and record.decision != "failed" and "used" not in step.payloads:
                used = after.get("tool_input")
        elif record.event == "after_tool" and isinstance(after, dict) and "result" not in step.payloads:
            result = after.get("tool_output")
    if step.outcome in ("refused", "declined", "waiting"):
        used = result = None
    return asked, used, result


def _happened(step: Step, run_waits: bool) -> str:
    if step.kind == "engine" and isinstance(step.opened.get("decisions"), dict):
        answers = ", ".join(f"{answer} to {call}" for call, answer in step.opened["decisions"].items())
        return f"{answers}, said {step.opened.get('by') or 'somebody'}"
    by = f" by {step.refused_by}" if step.refused_by else ""
    reason = f": {step.reason}" if step.reason else ""
    changed = [record.hook_name for record in step.records if record.decision == "modify" and not record.shadow]
    words = {
        "open": "still going",
        "ran": "ran",
        "refused": f"never ran: refused{by}{reason}",
        "declined": f"never ran: a person said no{reason}",
        "failed": f"failed{by}{reason}" if step.refused_by else f"failed: {step.error_type or 'error'}",
        "withheld": f"ran, but its result was withheld{by}{reason}",
        "waiting": "waits for a person" if run_waits else "stopped here for a person, and went on below",
        "cancelled": "cancelled",
    }
    text = words.get(step.outcome, step.outcome)
    broke = [record.hook_name for record in step.records if record.broke and record.policy == "warn"]
    if step.outcome == "ran" and changed:
        text += f", changed by {', '.join(dict.fromkeys(changed))}"
    if step.outcome == "ran" and broke:
        text += f", although {', '.join(dict.fromkeys(broke))} broke (warn)"
    return text


def _tone(step: Step, run_waits: bool) -> str:
    if step.outcome == "waiting" and not run_waits:
        return "past"
    tones = {"refused": "deny", "declined": "deny", "withheld": "deny", "failed": "failed", "waiting": "ask"}
    return tones.get(step.outcome, "open" if step.outcome == "open" else "ran")


def _merged(one: HookStats, other: HookStats) -> HookStats:
    """Two configurations of a hook counted together; the later one's description stands."""
    decisions, buckets = dict(one.decisions), dict(one.buckets)
    for decision, count in other.decisions.items():
        decisions[decision] = decisions.get(decision, 0) + count
    for bucket, count in other.buckets.items():
        buckets[bucket] = buckets.get(bucket, 0) + count
    return HookStats(
        other.event, other.hook_name, other.source, other.hook_kind, other.mode, other.priority, other.policy,
        other.observe, other.shadow, decisions, buckets, one.total_ms + other.total_ms,
    )  # fmt: skip
