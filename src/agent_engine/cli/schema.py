"""``agentctl schema``: the JSON Schema of agents.yaml, for editors and other tools."""

from __future__ import annotations

import json

import typer


def schema() -> None:
    """Print the JSON Schema of agents.yaml.

    An editor with a YAML language server uses it when the file begins with `# yaml-language-server: $schema=FILE`.
    """
    from agent_engine.spec.schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
