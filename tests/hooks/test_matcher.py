"""A matcher means what it looks like."""

from __future__ import annotations

import fnmatch
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agent_engine.hooks.definition import FunctionHook
from agent_engine.hooks.matcher import compile_matcher, matches


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("rm|delete", "rm", True),
        ("rm|delete", "delete", True),
        ("rm|delete", "rmdir_safe", False),
        ("rm|delete", "undelete", False),
        ("rm | delete", "delete", True),
        (" rm ", "rm", True),
        ("*", "anything at all", True),
        ("*", "", True),
        ("write_*", "write_file", True),
        ("write_*", "writer", False),
        ("write_*", "rewrite_x", False),
        ("*delete*", "undelete_note", True),
        ("delete?", "delete1", True),
        ("delete?", "delete", False),
        ("mcp__s__*", "mcp__s__read", True),
        ("mcp__s__*", "mcp__st__read", False),
        ("read|write_*", "write_x", True),
        ("Read", "read", False),
        ("re.d", "read", True),
        ("re.d", "bread", False),
        ("re.d", "ready", False),
        ("^read$", "read", True),
        ("(read|write)_.*", "write_x", True),
        ("[rw]ead", "wead", True),
        ("a+", "aaa", True),
        ("a b", "a b", True),
        ("read", "read\n", False),
        ("re.*", "read\n", False),
    ],
)
def test_matchers_mean_what_they_look_like(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


def test_no_matcher_is_every_target_and_a_matcher_needs_a_name() -> None:
    assert matches(None, "x")
    assert matches(None, None)
    assert not matches("*", None)


def test_one_hit_among_several_names_is_a_hit() -> None:
    names = ("read", "docs__read", "mcp__docs__read")
    assert matches("read", names)
    assert matches("docs__*", names)
    assert matches("mcp__docs__read", names)
    assert not matches("docs", names)


@pytest.mark.parametrize("bad", ["(", "[", "a{2", "*.txt(", "\\", "+"])
def test_a_bad_pattern_is_refused_when_the_hook_is_made(bad: str) -> None:
    if bad == "a{2":
        assert compile_matcher(bad)("a{2")
        return
    with pytest.raises(ValueError, match="Hook 'guard' on before_tool: the matcher .* is no valid regular expression"):
        FunctionHook(event="before_tool", func=lambda payload: None, name="guard", matcher=bad)


@pytest.mark.parametrize("empty", ["", " ", "rm|", "|rm", "rm| |delete"])
def test_a_matcher_with_nothing_in_it_is_refused(empty: str) -> None:
    with pytest.raises(ValueError, match="empty .*matches nothing"):
        FunctionHook(event="before_tool", func=lambda payload: None, matcher=empty)


_names = st.text(alphabet="abrmw_-|*?.x", max_size=8)


@given(pattern=st.text(alphabet="abrmw_-|*?x", min_size=1, max_size=8), name=_names)
def test_plain_text_is_a_shell_pattern_with_alternatives(pattern: str, name: str) -> None:
    parts = pattern.split("|")
    if all(parts):
        assert matches(pattern, name) == any(fnmatch.fnmatchcase(name, part) for part in parts)
    else:
        with pytest.raises(ValueError, match="empty"):
            compile_matcher(pattern)


@given(pattern=st.text(alphabet="abr.^$()[]{}+\\|*?", min_size=1, max_size=8), name=_names)
def test_text_with_a_sign_of_one_is_a_regular_expression_in_full(pattern: str, name: str) -> None:
    assume(not set(".^$()[]{}+\\").isdisjoint(pattern))
    try:
        expected = re.fullmatch(pattern, name) is not None
    except re.error:
        with pytest.raises(ValueError, match="no valid regular expression"):
            compile_matcher(pattern)
    else:
        assert matches(pattern, name) is expected
