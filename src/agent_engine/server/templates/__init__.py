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
    from markupsafe import Markup, escape

    from agent_engine.server import present

    def shown(value: object) -> object:
        """Text of strangers, made fit to be seen; markup of the templates themselves stays as it is."""
        return present.visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=PackageLoader("agent_engine.server", "templates"),
        autoescape=True,
        finalize=shown,
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
        ask_text=present.ask_text,
        short=present.short,
        exact=escape,  # for values that come back from a form: escaped, but otherwise as they are
        segment=lambda text: quote(text, safe="", errors="replace"),
    )
    return environment
