"""RunState: what one run knows about itself."""

from __future__ import annotations


class RunState:
    """One request on its way. Callables of a Node get it; they read ``run_context``, ``metadata``, ``message``."""
