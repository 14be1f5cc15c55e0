"""What is under way inside one another, told across tasks and threads, where Python itself counts no depth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

__all__ = ["Nested", "around", "outwards"]


class Nested:
    """Something that has an end. ``above`` is what was under way around it when it began, of its own kind, or None."""

    __slots__ = ("above", "over")

    def __init__(self, above: Any) -> None:
        self.above = above
        self.over = False


_N = TypeVar("_N", bound=Nested)


def outwards(one: _N | None) -> Iterator[_N]:
    """``one``, what was around it when it began, and so on."""
    while one is not None:
        yield one
        one = one.above


def around(one: _N | None) -> list[_N]:
    """What is still under way from ``one`` outwards; a task in the background may outlive what it was begun in."""
    return [nested for nested in outwards(one) if not nested.over]
