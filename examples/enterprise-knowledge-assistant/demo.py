"""The demo: starts the two MCP servers, plays a tour of questions through the assistant, and stops everything.

Without options it plays the questions of questions.txt; ``--question`` asks one of your own, and ``--model`` takes
another model than the offline one.
"""

# ruff: noqa: E402 - the first statement keeps a Ctrl-C during the imports quiet
from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import asyncio
import os
import secrets
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    """The exit code. A Ctrl-C is one line at any time, also while the libraries are still being imported."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return demo()
    except KeyboardInterrupt:
        print("\nStopped; the servers too.", file=sys.stderr)
        return 130
    except Exception as error:  # noqa: BLE001 - a failure becomes a sentence and an exit code
        from agent_engine.cli.main import report

        return report(error)


def demo() -> int:
    from running import KEY, servers

    parser = argparse.ArgumentParser(description="Play the tour of the knowledge assistant, or ask it one question.")
    parser.add_argument("--question", help="ask this instead of playing the tour")
    parser.add_argument("--model", metavar="PROVIDER:NAME", help="take this model in place of the offline one")
    parser.add_argument("--json", action="store_true", help="the account as JSON, one object a line, on stderr")
    options = parser.parse_args()
    questions = [options.question] if options.question else questions_of(HERE / "questions.txt")
    # A random key for the demo's own server; no file ever holds it.
    os.environ.setdefault(KEY, secrets.token_urlsafe(32))
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    with servers() as addresses:
        os.environ.update(addresses)
        return asyncio.run(play(questions, options.model, options.json, addresses))


async def play(questions: list[str], model: str | None, as_json: bool, addresses: dict[str, str]) -> int:
    """Ask one question after the other through one engine; the worst exit code counts."""
    from running import KEY
    from tour import Tally, WatchedStream, greet, heading, sum_up

    from agent_engine import Engine, RunContext
    from agent_engine.cli.account import Account
    from agent_engine.cli.account_view import style_for
    from agent_engine.cli.run import answer

    watched = WatchedStream(sys.stderr, hidden={"the private server's key": os.environ[KEY], **keys_in_notes()})
    sys.stdout = WatchedStream(sys.stdout, hidden=watched.hidden, seen=watched.seen)
    tally = Tally(style_for(watched, as_json=as_json))
    account = Account(tally)
    if not as_json:
        greet(watched, addresses)
    worst = 0
    async with Engine.from_yaml(HERE / "agents.yaml", records=account, model=model) as engine:
        account.settle()
        for number, question in enumerate(questions, start=1):
            if not as_json:
                heading(watched, number, len(questions), question)
            code = await answer(engine, question, account, context=RunContext(user_id="visitor"))
            worst = max(worst, code)
    if not as_json:
        sum_up(watched, tally, watched.seen)
    return worst or (1 if watched.seen else 0)


def questions_of(path: Path) -> list[str]:
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def keys_in_notes() -> dict[str, str]:
    """What the notes hold that must not be shown, so that the demo can watch its own output for it."""
    found = {}
    for path in (HERE / "notes").glob("*.md"):
        for word in path.read_text(encoding="utf-8").split():
            if word.startswith("sk-"):
                found[f"the key in the note {path.stem}"] = word
    return found


if __name__ == "__main__":
    sys.exit(main())
