"""``agentctl hooks``: which hooks there are, and what they say to a payload."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from agent_engine.cli.main import APPROVAL, DONE, FAILED, PROBLEM, REFUSED, USAGE
from agent_engine.cli.options import EnvFile

if TYPE_CHECKING:
    from agent_engine.cli.hook_trial import Trial
    from agent_engine.hooks.definition import HookDefinition
    from agent_engine.hooks.events import HookEvent
    from agent_engine.hooks.scope import HookScope

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Hooks: list them, and try them on a payload without running an agent.",
)

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", readable=False, help="Take the hooks of this agents.yaml."),
]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE[:NAME]", help="Import this; it registers hooks, or NAME is a registry."),
]
PayloadFile = Annotated[
    str | None, typer.Option("--payload", "-p", metavar="FILE", help="The payload's fields as JSON; - is stdin.")
]
Fields = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Set one field, such as tool_input.path=/etc.")
]
Target = Annotated[
    str | None, typer.Option("--target", metavar="NAME", help="What matchers are tried against; else from the payload.")
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


@app.command("list")
def list_hooks(
    config: ConfigFile = None,
    imports: Imports = None,
    event: Annotated[str | None, typer.Option("--event", help="Only hooks of this event.")] = None,
    env: EnvFile = None,
    as_json: AsJson = False,
) -> None:
    """List the hooks in the order they run, each with where it was declared."""
    from agent_engine.cli.hook_trial import hook_row, show_hooks

    scope = _scope(config, imports)
    hooks = scope.hooks(None if event is None else _event(event))
    if as_json:
        typer.echo(json.dumps([hook_row(hook) for hook in hooks], indent=2, ensure_ascii=False))
    elif hooks:
        show_hooks(hooks)
    else:
        typer.echo("No hooks are registered there.", err=True)


@app.command("test")
def try_event(
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The event, such as before_tool.")],
    config: ConfigFile = None,
    imports: Imports = None,
    payload: PayloadFile = None,
    fields: Fields = None,
    target: Target = None,
    env: EnvFile = None,
    as_json: AsJson = False,
) -> None:
    """Fire all hooks of an event on a payload; show each decision, what it changed and how long it took.

    Without --payload an example is made up. Hooks run for real, with all that they do; no tool, model or server is
    called. Exit codes: 0 let through, 3 somebody must approve, 4 a hook broke, 5 refused.
    """
    scope, member = _scope(config, imports), _event(event)
    raise typer.Exit(_try(scope, member, _payload(member, payload, fields), target, as_json))


@app.command("run")
def try_hook(
    hook: Annotated[str, typer.Argument(metavar="HOOK", help="The hook's id or name, as `hooks list` shows it.")],
    config: ConfigFile = None,
    imports: Imports = None,
    event: Annotated[str | None, typer.Option("--event", help="Which of several hooks of that name.")] = None,
    payload: PayloadFile = None,
    fields: Fields = None,
    env: EnvFile = None,
    as_json: AsJson = False,
) -> None:
    """Fire one hook alone, whatever its matcher, agents and servers say; otherwise like `hooks test`."""
    from agent_engine.cli.hook_trial import alone

    found = _find(_scope(config, imports), hook, None if event is None else _event(event))
    member = _event(str(found.event))
    raise typer.Exit(_try(alone(found), member, _payload(member, payload, fields), None, as_json))


@app.command()
def schema(
    name: Annotated[
        str | None, typer.Argument(metavar="[EVENT|decision]", help="One schema; without it all, by file name.")
    ] = None,
) -> None:
    """Print the JSON Schema of an event's payload or of a decision: what commands and webhooks get and may answer."""
    from agent_engine.hooks.schemas import all_schemas, decision_schema, payload_schema

    if name is None:
        found: Any = all_schemas()
    else:
        found = decision_schema() if name == "decision" else payload_schema(_event(name))
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False))


def _try(scope: HookScope, event: HookEvent, built: Any, target: str | None, as_json: bool) -> int:
    from agent_engine.cli.hook_trial import show_trial, trial_row, try_hooks

    trial = asyncio.run(try_hooks(scope, event, built, target))
    if as_json:
        typer.echo(json.dumps(trial_row(trial), indent=2, ensure_ascii=False))
    else:
        show_trial(trial)
    return _code(trial)


def _code(trial: Trial) -> int:
    if trial.error is not None or (trial.verdict is not None and trial.verdict.broke):
        return FAILED
    if trial.verdict is None or trial.verdict.decision in ("allow", "modify"):
        return DONE
    return APPROVAL if trial.verdict.asked else REFUSED


def _scope(config: Path | None, imports: list[str] | None) -> HookScope:
    from agent_engine.hooks.registry import HookRegistry
    from agent_engine.hooks.scope import HookScope

    if config is None and not imports:
        _stop("Say which hooks: --config FILE, or --import MODULE.", USAGE)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    registries = [found for found in map(_imported, imports or []) if found is not None]
    if config is not None:
        registries.append(HookRegistry.from_yaml(config))
    return HookScope(*registries)


def _imported(name: str) -> Any:
    """Import ``module`` or ``module:registry``; the registry that the second names."""
    from agent_engine.hooks.registry import HookRegistry

    module_name, _, attribute = name.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        _stop(f"The module {error.name!r} cannot be found from {Path.cwd()}.", PROBLEM)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a stranger's module raises when it is imported
        _stop(f"Importing {module_name} raised {type(error).__name__}: {error}", PROBLEM)
    if not attribute:
        return None
    registry = getattr(module, attribute, None)
    if not isinstance(registry, HookRegistry):
        _stop(f"{name} is no HookRegistry; give the module alone, or the name of a registry in it.", PROBLEM)
    return registry


def _event(name: str) -> HookEvent:
    from agent_engine.hooks.events import event_of

    try:
        return event_of(name)
    except ValueError as error:
        _stop(str(error), USAGE)


def _find(scope: HookScope, name: str, event: HookEvent | None) -> HookDefinition:
    hooks = [one for one in scope.hooks(event) if name in (one.id, one.name)]
    if len(hooks) == 1:
        return hooks[0]
    if hooks:
        _stop(f"{len(hooks)} hooks are called '{name}': {', '.join(one.id for one in hooks)}. Give an id.", USAGE)
    known = ", ".join(dict.fromkeys(one.name for one in scope.hooks(event))) or "none"
    _stop(f"There is no enabled hook '{name}' (there are: {known}).", USAGE)


def _payload(event: HookEvent, file: str | None, fields: list[str] | None) -> Any:
    """The payload of a trial: from a file, else made up; then what --set says."""
    from agent_engine.cli.hook_trial import example_fields, field_names
    from agent_engine.hooks.runner import build_payload
    from agent_engine.plugins.problems import did_you_mean

    if event == "on_run_error":
        return RuntimeError("an error to try hooks on")
    data = example_fields(event) if file is None else _read(event, file)
    known = field_names(event)
    for one in fields or []:
        name = one.partition("=")[0].partition(".")[0]
        if "=" in one and name and name not in known:
            _stop(f"--set {name}: the payload of {event} has no such field{did_you_mean(name, known)}", USAGE)
        _set(data, one)
    try:
        return build_payload(event, data)
    except (TypeError, ValueError, AttributeError) as error:
        _stop(f"The payload does not fit {event}: {error}", USAGE)


def _read(event: HookEvent, file: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text("utf-8-sig")
    except OSError as error:
        _stop(f"{file} cannot be read: {error.strerror}.", PROBLEM)
    except UnicodeDecodeError as error:
        _stop(f"{file} is not UTF-8 text: byte {error.start} cannot be read as such.", PROBLEM)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        _stop(f"{file} is not JSON that can be used: {error}", PROBLEM)
    if not isinstance(data, dict):
        _stop(f"{file} holds no JSON object; a payload is an object of its fields.", PROBLEM)
    if data.get("event_name", event.value) not in ("", event.value):
        _stop(f"{file} is a payload of {data['event_name']}, not of {event}.", PROBLEM)
    return data


def _set(data: dict[str, Any], assignment: str) -> None:
    path, equals, text = assignment.partition("=")
    if not equals or not path:
        _stop(f"--set {assignment!r} is not FIELD=VALUE.", USAGE)
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    *outer, last = path.split(".")
    for name in outer:
        inner = data.setdefault(name, {})
        if not isinstance(inner, dict):
            _stop(f"--set {path}: {name} is no object.", USAGE)
        data = inner
    data[last] = value


def _stop(text: str, code: int) -> NoReturn:
    typer.echo(text, err=True)
    raise typer.Exit(code)
