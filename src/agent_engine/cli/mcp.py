"""``agentctl mcp``: the MCP servers of a system, and one call of one of their tools, with every hook on."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_engine.cli.main import FAILED, PROBLEM, REFUSED, USAGE, report
from agent_engine.cli.options import Config, EnvFile, Records, UserId
from agent_engine.cli.plaintext import answer_for, plain

if TYPE_CHECKING:
    from agent_engine.mcp.client import McpClients
    from agent_engine.mcp.server import McpServer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="MCP servers: list them and their tools, call one tool with hooks on.",
)

AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
OrganizationId = Annotated[str | None, typer.Option("--organization-id", help="The caller's organisation.")]
TokenEnv = Annotated[
    str | None,
    typer.Option("--token-env", metavar="NAME", help="A variable that holds the caller's access token."),
]


@app.command("list")
def list_servers(
    config: Config,
    user_id: UserId = None,
    organization_id: OrganizationId = None,
    token_env: TokenEnv = None,
    env: EnvFile = None,
    as_json: AsJson = False,
) -> None:
    """List the servers of a system and the tools that they show this caller.

    The engine is built for it, so that its hooks set the credentials. Exit code 1 where a server cannot be listed.
    """
    raise typer.Exit(asyncio.run(_list(config, _context(user_id, organization_id, token_env), as_json)))


@app.command()
def call(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool: its name, or SERVER__TOOL.")],
    config: Config,
    arguments: Annotated[
        str, typer.Option("--arguments", "-a", metavar="JSON", help="The arguments, as one JSON object.")
    ] = "{}",
    user_id: UserId = None,
    organization_id: OrganizationId = None,
    token_env: TokenEnv = None,
    env: EnvFile = None,
    records: Records = None,
) -> None:
    """Call one tool, with every hook on, and print its result.

    Exit code 4 where the call failed, 5 where a hook refused it.
    """
    try:
        given = json.loads(arguments)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise typer.BadParameter('the arguments are no JSON object, such as {"id": 1}.', param_hint="--arguments")
    context = _context(user_id, organization_id, token_env)
    raise typer.Exit(asyncio.run(_call(config, tool, given, context, records)))


def _context(user_id: str | None, organization_id: str | None, token_env: str | None) -> Any:
    import os

    from agent_engine.hooks.managed import AuthContext, RunContext

    token = None
    if token_env is not None:
        token = os.environ.get(token_env)
        if not token:
            raise typer.BadParameter(f"the variable {token_env} is not set.", param_hint="--token-env")
    auth = AuthContext(user_id=user_id, organization_id=organization_id, inbound_access_token=token)
    return RunContext(user_id=user_id, organization_id=organization_id, auth_context=auth)


async def _list(config: Path, context: Any, as_json: bool) -> int:
    from agent_engine.runtime.engine import Engine

    found: list[dict[str, Any]] = []
    async with Engine.from_yaml(config) as engine:
        clients: McpClients | None = engine.built.clients
        for server in clients.servers if clients is not None else ():
            assert clients is not None
            found.append(await _listed(clients, server, context))
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        _show(found)
    return PROBLEM if any("problem" in one for one in found) else 0


async def _listed(clients: McpClients, server: McpServer, context: Any) -> dict[str, Any]:
    from agent_engine.mcp.errors import McpError

    entry: dict[str, Any] = {"server": server.id, "at": server.where, "discover": server.discover}
    try:
        tools = await clients.tools_for(clients.caller(context), server.id)
    except McpError as problem:
        return {**entry, "problem": str(problem), "tools": []}
    if clients.absent(server.id):
        entry["problem"] = "It cannot be used now; it is optional, and its tools are absent."
    shown = [{"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in tools]
    return {**entry, "tools": shown}


def _show(found: list[dict[str, Any]]) -> None:
    if not found:
        typer.echo("The system declares no MCP server.")
    for entry in found:
        typer.echo(plain(f"{entry['server']}  {entry['at']}"))
        if "problem" in entry:
            typer.echo(plain(f"  {entry['problem']}"))
        for tool in entry["tools"]:
            takes = ", ".join(tool["parameters"].get("properties") or {})
            first = next(iter(tool["description"].strip().splitlines()), "")
            typer.echo(plain(f"  {tool['name']}({takes})  {first}".rstrip()))


async def _call(config: Path, name: str, arguments: dict[str, Any], context: Any, records: str | None) -> int:
    from agent_engine.runtime.engine import Engine
    from agent_engine.runtime.run import call_tool_directly
    from agent_engine.tools.result import text_of

    async with Engine.from_yaml(config, records=records) as engine:
        clients: McpClients | None = engine.built.clients
        known = {
            alias: tool.name
            for server in (clients.servers if clients is not None else ())
            for tool in (await clients.tools_for(clients.caller(context), server.id) if clients is not None else ())
            for alias in (*tool.aliases, tool.name)
        }
        if name not in known:
            typer.echo(f"There is no MCP tool {name!r}; `agentctl mcp list` shows what there is.", err=True)
            return USAGE
        built = engine.built
        try:
            outcome = await call_tool_directly(built.root, known[name], arguments, host=built.host, context=context)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - every failure of a call becomes a sentence and an exit code
            return report(error)
    if outcome.status == "ok":
        typer.echo(answer_for(sys.stdout, text_of(outcome.value)))
        return 0
    if outcome.error is not None:
        return report(outcome.error)
    typer.echo(plain(outcome.text, keep="\n"), err=True)
    return REFUSED if outcome.status == "denied" else FAILED
