"""What the demo shows around the answers."""

from __future__ import annotations

import io

from tests.examples.conftest import load


def test_a_secret_on_its_way_to_the_screen_is_held_back_and_noticed():
    out = io.StringIO()
    watched = load("tour").WatchedStream(out, {"the key": "sk-hidden"})
    watched.write("before sk-hidden after\n")
    watched.write("nothing here\n")
    assert out.getvalue() == "before ******** after\nnothing here\n"
    assert watched.seen == {"the key"}


def test_the_end_says_so_when_a_secret_was_shown():
    tour = load("tour")
    out = io.StringIO()
    tour.sum_up(out, tour.Tally(None), {"the key"})
    assert "secrets: SHOWN, and that is a fault: the key" in out.getvalue()
