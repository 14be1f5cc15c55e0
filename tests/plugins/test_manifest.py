"""plugins.toml is read with the line of each entry, and every fault of it is told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_engine.plugins.manifest import Entry, Manifest, read_manifest


def manifest(folder: Path, text: str | bytes) -> Manifest:
    file = folder / "plugins/plugins.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_manifest(folder)


def test_entries_keep_their_places(tmp_path: Path) -> None:
    found = manifest(
        tmp_path,
        '# ours\n[hooks.plugins]\na = "plugins.hooks.a:A"\n"b-c" = "x.y:Z.w"  # note\n\n[ tools ]\n  t="plugins.t:t"\n',
    )
    assert found.problems == []
    assert found.hooks == {"a": Entry("a", "plugins.hooks.a:A", 3, 1), "b-c": Entry("b-c", "x.y:Z.w", 4, 1)}
    assert found.tools["t"] == Entry("t", "plugins.t:t", 7, 3)


def test_no_file_is_an_empty_manifest(tmp_path: Path) -> None:
    found = read_manifest(tmp_path)
    assert (found.exists, found.hooks, found.problems) == (False, {}, [])


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[tols]\n", 1, "unknown table 'tols'; did you mean 'tools'?"),
        ("x = 1\n", 1, "unknown table 'x'"),
        ('\n[hooks]\na = "b:c"\n', 3, "hook plugins stand under [hooks.plugins]"),
        ('[hooks.plugin]\na = "b:c"\n', 1, "hook plugins stand under [hooks.plugins]"),
        ("[tools]\na = 1\n", 2, 'write "module:attribute" here, not 1'),
        ('[tools]\na = "b"\n', 2, "'b' is no import path; write it as module:attribute"),
        ('[tools]\na = "plugins/a.py:f"\n', 2, "is no import path"),
        ('[tools]\na = {x = "b:c"}\n', 2, "not a mapping"),
        ('tools = "x"\n', 1, "a table of id"),
        ('[tools]\na = "b:c"\na = "d:e"\n', 1, "not valid TOML"),
        ("[tools\n", 1, "not valid TOML"),
        ("[tools]\na = \n", 2, "not valid TOML"),
        (b"\xff\xfe[tools]\n", 1, "not UTF-8"),
        ("#" * 200_000, 0, "over 128 KiB"),
    ],
)
def test_faults_are_told_with_their_lines(tmp_path: Path, text: str | bytes, line: int, words: str) -> None:
    (problem,) = manifest(tmp_path, text).problems
    assert problem.line == line
    assert words in problem.message


@given(st.binary(max_size=80) | st.text("[]=\"\n.abc:{}#'", max_size=80).map(str.encode))
def test_no_text_raises(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    manifest(tmp_path_factory.getbasetemp(), raw)
