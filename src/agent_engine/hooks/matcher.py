"""Matchers: which targets a hook is for.

A text with any of ``. ^ $ ( ) [ ] { } + \\`` is a regular expression that must match in full; any other is a
shell-style pattern, with ``|`` between alternatives, and blanks around them ignored. No matcher is every target.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from functools import lru_cache

_REGEX_SIGNS = frozenset(".^$()[]{}+\\")

Target = str | tuple[str, ...] | None
"""What a matcher is tried against: a name, several names of one thing (one hit is a hit), or nothing."""


@lru_cache(maxsize=1024)
def compile_matcher(pattern: str) -> Callable[[str], bool]:
    """A test for names.

    Raises:
        ValueError: ``pattern`` is no valid regular expression, or it or one of its alternatives is empty.
    """
    if not pattern.strip():
        raise ValueError("an empty matcher matches nothing; leave it out to match every target")
    if _REGEX_SIGNS.isdisjoint(pattern):
        parts = [part.strip() for part in pattern.split("|")]
        if not all(parts):
            raise ValueError(f"the matcher {pattern!r} has an empty alternative, which matches nothing")
        tests = [re.compile(translate(part)).match for part in parts]
        return lambda name: any(test(name) is not None for test in tests)
    try:
        full = re.compile(pattern).fullmatch
    except re.error as error:
        raise ValueError(f"the matcher {pattern!r} is no valid regular expression: {error}") from None
    return lambda name: full(name) is not None


def matches(pattern: str | None, target: Target) -> bool:
    """True where ``pattern`` is for ``target``. A hook with a matcher is not for a step that has no name."""
    if pattern is None:
        return True
    if target is None:
        return False
    test = compile_matcher(pattern)
    return test(target) if isinstance(target, str) else any(test(name) for name in target)
