"""The templates of the pages, and rendering them: every value is escaped."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import Environment


def render(name: str, values: Mapping[str, Any]) -> str:
    """The text of a template with its values put in, escaped."""
    return _environment().get_template(name).render(values)


@lru_cache(1)
def _environment() -> Environment:
    from urllib.parse import quote

    from jinja2 import Environment, PackageLoader, StrictUndefined

    from agent_engine.server import present

    environment = Environment(
        loader=PackageLoader("agent_engine.server", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(
        ms=present.milliseconds,
        clock=present.clock,
        ago=present.ago,
        json_text=present.json_text,
        segment=lambda text: quote(text, safe=""),
    )
    return environment
