"""Options that several commands share, and reading the file of ``--env``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer


def load_env_file(path: Path | None) -> Path | None:
    """Set the variables of a ``.env`` file that are not set yet.

    Lines are ``NAME=VALUE``, with an optional ``export`` and optional quotes; ``#`` begins a comment, on a line of its
    own or behind a value. Raises typer.BadParameter naming the line where one is something else, never its value.
    """
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{path} is not UTF-8 text.", param_hint="--env") from None
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be read: {error.strerror}.", param_hint="--env") from None
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip().removeprefix("export ").strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = stripped.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise typer.BadParameter(f"{path}:{number} is not NAME=VALUE.", param_hint="--env")
        if "\0" in value:
            raise typer.BadParameter(f"{path}:{number} holds a NUL byte.", param_hint="--env")
        os.environ.setdefault(name, _env_value(value.strip()))
    return path


_QUOTED = re.compile(r"""(["'])((?:(?!\1).)*)\1\s*(?:#.*)?""")


def _env_value(text: str) -> str:
    quoted = _QUOTED.fullmatch(text)
    return quoted[2] if quoted is not None else text.partition(" #")[0].rstrip()


Config = Annotated[
    Path, typer.Option("--config", "-c", readable=False, help="The agents.yaml of the system.", show_default=False)
]
EnvFile = Annotated[
    Path | None,
    typer.Option(
        "--env",
        readable=False,
        is_eager=True,  # before the others: they may be read from the variables that it sets
        callback=load_env_file,
        help="A file of NAME=VALUE lines to set first; what is set already stays.",
    ),
]
SessionId = Annotated[
    str | None, typer.Option("--session-id", help="The conversation to go on with; without it, one of its own.")
]
UserId = Annotated[str | None, typer.Option("--user-id", help="Who asks; hooks read it from the run context.")]


def _known_model(value: str | None) -> str | None:
    if value is None:
        return None
    from agent_engine.spec.problems import nearest
    from agent_engine.spec.system import KEYLESS, PROVIDERS

    provider, _, name = value.partition(":")
    if provider not in PROVIDERS:
        near = nearest(provider, PROVIDERS)
        hint = f"did you mean '{near}'?" if near else "write PROVIDER:NAME, such as openai:NAME."
        raise typer.BadParameter(f"there is no provider {provider!r}; {hint}")
    if not name and provider not in KEYLESS:
        raise typer.BadParameter(f"the name of the model is missing: {provider}:NAME.")
    return value


ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="PROVIDER:NAME",
        callback=_known_model,
        help="Take this model in place of those in the file.",
    ),
]
Records = Annotated[
    str | None,
    typer.Option(
        "--records",
        metavar="ADDRESS",
        envvar="AGENT_ENGINE_RECORDS",
        help="Keep decision records there, such as sqlite:FILE.",
    ),
]
