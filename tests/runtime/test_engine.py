"""A declared system is built, run and closed as its file says."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.idle_clock import Clock
from tests.runtime.engine_kit import call, engine, project

from agent_engine.agent import Agent
from agent_engine.hooks.definition import FunctionHook
from agent_engine.hooks.errors import HookExecutionError, HookLoadError, LimitReached, RunBlocked
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.managed import AuthContext, RunContext
from agent_engine.hooks.registry import HookRegistry, add_hook, remove_hook
from agent_engine.hooks.result import HookResult
from agent_engine.plugins.problems import SpecError
from agent_engine.runtime.engine import GRACE_SECONDS, Engine, EngineError
from agent_engine.runtime.result import RunResult

SIMPLE = """
system: {name: demo}
agents:
  a: {tools: [echo]}
tools: {echo: Says it again.}
graph: {a: }
"""
ECHO = {"plugins/tools/echo.py": "def echo(text: str) -> str:\n    return f'echo {text}'\n"}


async def test_an_engine_answers_and_its_result_says_how(tmp_path: Path) -> None:
    built, model = engine(project(tmp_path, SIMPLE, ECHO), [call("echo", {"text": "x"}), "said"])
    async with built:
        result = await built.run("hello", RunContext(user_id="u"))
    assert isinstance(result, RunResult)
    assert (result.answer, result.output, result.status, result.visited) == ("said", "said", "completed", ("a",))
    assert model.requests[1].messages[-1]["content"] == "echo x"
    assert [tool.description for tool in model.requests[0].tools] == ["Says it again."]


async def test_before_the_build_and_after_the_close_the_error_says_so(tmp_path: Path) -> None:
    built, _ = engine(project(tmp_path, SIMPLE, ECHO), ["a"])
    for use in (built.run, built.stream):
        with pytest.raises(EngineError, match="needs a built engine"):
            answer = use("hello")
            if asyncio.iscoroutine(answer):
                await answer
    with pytest.raises(EngineError, match="needs a built engine"):
        await built.call_tool("echo", {})
    async with built:
        with pytest.raises(EngineError, match="built once"):
            await built.build()
    await built.close()
    with pytest.raises(EngineError, match="this engine is closed"):
        await built.run("hello")
    never, _ = engine(tmp_path / "agents.yaml", [])
    await never.close()


def test_an_engine_of_something_else_says_what_it_takes() -> None:
    with pytest.raises(TypeError, match=r"takes the path of a file, or a System, not Agent; an Agent runs by itself"):
        Engine(Agent())  # type: ignore[arg-type]  # what the test is about


async def test_a_wrong_file_raises_every_problem(tmp_path: Path) -> None:
    path = project(tmp_path, "system: {name: 1}\nagents: {a: {auto: 0}}\ngraph: {b: }\n")
    with pytest.raises(SpecError) as caught:
        Engine.from_yaml(path)
    assert [problem.line for problem in caught.value.problems if problem.severity == "error"] == [1, 2, 3]


async def test_history_comes_before_the_message(tmp_path: Path) -> None:
    built, model = engine(project(tmp_path, SIMPLE, ECHO), ["a"])
    async with built:
        await built.run("now", history=[{"role": "user", "content": "earlier"}])
    assert [message["content"] for message in model.requests[0].messages][-2:] == ["earlier", "now"]


async def test_a_conversation_goes_on_and_belongs_to_its_caller(tmp_path: Path) -> None:
    built, model = engine(project(tmp_path, SIMPLE, ECHO), ["one", "two", "three"])
    async with built:
        for user in ("u", "u", "other"):
            await built.run("hello", RunContext(user_id=user, conversation_id="c"))
    lengths = [sum(m["role"] != "system" for m in request.messages) for request in model.requests]
    assert lengths == [1, 3, 1]


async def test_a_tool_is_called_directly_through_its_hooks(tmp_path: Path) -> None:
    yaml = SIMPLE + "hooks: {before_tool: [{ref: 'plugins.gate:gate', matcher: echo}]}\n"
    gate = "def gate(event):\n    return 'not that' if event.payload.tool_input['text'] == 'bad' else None\n"
    built, _ = engine(project(tmp_path, yaml, {**ECHO, "plugins/gate.py": gate}), [])
    async with built:
        assert await built.call_tool("echo", {"text": "x"}) == "echo x"
        refused = await built.call_tool("echo", {"text": "bad"})
        assert refused == "Execution of echo was blocked by security policy. Reason: not that"
        with pytest.raises(LookupError):
            await built.call_tool("nothing", {})


async def test_limits_come_from_execution(tmp_path: Path) -> None:
    yaml = SIMPLE + "execution: {max_iterations: 2, allow_duplicate_tool_calls: true}\n"
    built, _ = engine(project(tmp_path, yaml, ECHO), [call("echo", {"text": "x"}, f"c{n}") for n in range(5)])
    async with built:
        with pytest.raises(LimitReached) as caught:
            await built.run("hello")
    assert caught.value.limit == "model_calls"


async def test_a_duplicate_call_and_a_call_over_the_limit_are_refused_with_a_text(tmp_path: Path) -> None:
    turns = [call("echo", {"text": "x"}, "1"), call("echo", {"text": "x"}, "2"), "done"]
    built, model = engine(project(tmp_path, SIMPLE, ECHO), turns)
    async with built:
        await built.run("hello")
    assert model.requests[2].messages[-1]["content"] != "echo x"


async def test_auto_false_and_approval_required_ask_and_nobody_means_no(tmp_path: Path) -> None:
    for yaml in (
        SIMPLE.replace("tools: [echo]", "tools: [echo], auto: false"),
        SIMPLE.replace("{echo: Says it again.}", "{echo: {description: x, approval: required}}"),
    ):
        path = project(tmp_path, yaml, ECHO)
        built, model = engine(path, [call("echo", {"text": "x"}), "done"])
        async with built:
            await built.run("hello")
        assert "blocked" in model.requests[1].messages[-1]["content"]
        asked: list[Any] = []

        def approver(ask: Any, asked: list[Any] = asked) -> bool:
            asked.append((ask.tool_name, ask.arguments, ask.agent))
            return True

        built, model = engine(path, [call("echo", {"text": "x"}), "done"], approver=approver)
        async with built:
            await built.run("hello")
        assert asked == [("echo", {"text": "x"}, "a")]
        assert model.requests[1].messages[-1]["content"] == "echo x"


async def test_a_waiting_run_is_listed_and_goes_on(tmp_path: Path) -> None:
    yaml = SIMPLE.replace("tools: [echo]", "tools: [echo], auto: false")
    store = f"sqlite:{tmp_path / 'store.db'}"
    path = project(tmp_path, yaml, ECHO)
    built, _ = engine(path, [call("echo", {"text": "x"})], approver="later", store=store)
    async with built:
        result = await built.run("hello", RunContext(user_id="u"))
        assert (result.status, [ask.call_id for ask in result.pending]) == ("waiting", ["c1"])
        assert [document["run_id"] for document in await built.waiting()] == [result.run_id]
    again, model = engine(path, ["done"], approver="later", store=store)
    async with again:
        finished = await again.resume(result.run_id, {"c1": "yes"}, RunContext(user_id="u"))
        assert finished.output == "done"
        assert model.requests[0].messages[-1]["content"] == "echo x"
        assert await again.waiting() == []


ROUTED = """
system: {name: demo}
agents:
  open: {description: Open., tools: [echo]}
  vault: {description: Secret., protected: true, tools: [dig]}
orchestrators:
  r: {prompts: {orchestrator: r.md}}
tools: {echo: Says it again., dig: Digs.}
graph: {r: {open: , vault: }}
"""
ROUTED_FILES = {
    **ECHO,
    "r.md": "Route.",
    "plugins/tools/dig.py": "def dig(text: str) -> str:\n    return 'gold'\n",
    "plugins/access.py": """
    class AccessResolver:
        async def can_access(self, ctx, node_id):
            assert not hasattr(ctx.headers, "authorization")
            if ctx.run_context.user_id == "crash":
                raise RuntimeError("no idea")
            if ctx.run_context.user_id == "odd":
                return "yes"
            return ctx.run_context.user_id == "boss" and node_id in ("vault", "r")
    """,
}


@pytest.mark.parametrize(("user", "seen"), [("boss", True), ("clerk", False), ("crash", False), ("odd", False)])
async def test_a_protected_node_exists_for_those_who_may(tmp_path: Path, user: str, seen: bool) -> None:
    turns = [call("vault", {"message": "go"}), *([call("dig", {"text": "x"}), "gold"] if seen else []), "done"]
    built, model = engine(project(tmp_path, ROUTED, ROUTED_FILES), turns)
    async with built:
        context = RunContext(user_id=user)
        result = await built.run("hello", context)
        assert ("vault" in [tool.name for tool in model.requests[0].tools]) is seen
        assert ("vault" in result.visited) is seen
        if seen:
            assert await built.call_tool("dig", {"text": "x"}, context) == "gold"
        else:
            with pytest.raises(LookupError):
                await built.call_tool("dig", {"text": "x"}, context)


async def test_a_protected_root_does_not_exist_for_the_others(tmp_path: Path) -> None:
    yaml = ROUTED.replace("orchestrator: r.md}", "orchestrator: r.md}, protected: true")
    built, model = engine(project(tmp_path, yaml, ROUTED_FILES), ["done"])
    async with built:
        with pytest.raises(LookupError):
            await built.run("hello", RunContext(user_id="clerk"))
        with pytest.raises(LookupError):
            await built.call_tool("echo", {"text": "x"}, RunContext(user_id="clerk"))
        assert model.requests == []
        assert (await built.run("hello", RunContext(user_id="boss"))).output == "done"


async def test_who_lost_access_to_a_protected_root_cannot_go_on_with_a_run_of_theirs(tmp_path: Path) -> None:
    yaml = ROUTED.replace("orchestrator: r.md}", "orchestrator: r.md}, protected: true")
    yaml = yaml.replace("dig: Digs.", "dig: {description: Digs., approval: required}")
    files = {
        **ROUTED_FILES,
        "plugins/access.py": """
        from pathlib import Path

        class AccessResolver:
            def can_access(self, ctx, node_id):
                return not Path(__file__).with_name("closed").exists()
        """,
    }
    turns = [call("vault", {"message": "go"}), call("dig", {"text": "x"}), "gold", "done"]
    built, _ = engine(project(tmp_path, yaml, files), turns, approver="later")
    async with built:
        waiting = await built.run("hello", RunContext(user_id="boss"))
        (ask,) = waiting.pending
        (tmp_path / "plugins" / "closed").touch()
        with pytest.raises(LookupError):
            await built.resume(waiting.run_id, {ask.call_id: "yes"})
        assert [one["run_id"] for one in await built.waiting()] == [waiting.run_id]
        (tmp_path / "plugins" / "closed").unlink()
        assert (await built.resume(waiting.run_id, {ask.call_id: "yes"})).output == "done"


PROMPTED = """
system: {name: demo}
agents:
  a: {prompts: {system: a.md, user: u.md}, resolvers: [ticket]}
resolvers: {day: shared, ticket: agent}
graph: {a: }
"""
PROMPTED_FILES = {
    "a.md": 'Day {{ day }}, ticket {{ticket}}, json {{ {"a": 1} }}.',
    "u.md": "Asked on {{ day }}: {{ message }}",
    "plugins/resolvers/shared.py": """
    class SharedResolver:
        calls = 0
        def day(self, ctx):
            self.calls += 1
            return f"{ctx.headers['X-Day']} {{{{ ticket }}}} {self.calls}"
    """,
    "plugins/resolvers/a.py": """
    from plugins.resolvers.shared import SharedResolver
    class Resolver(SharedResolver):
        async def ticket(self, ctx):
            assert ctx.node_id == "a"
            return {
                "before": sorted(ctx.values),
                "headers": sorted(ctx.headers),
                "in_metadata": sorted(ctx.metadata["headers"]),
                "in_context": sorted(ctx.run_context.metadata["headers"]),
                "token": ctx.run_context.auth_context.inbound_access_token,
                "user": ctx.run_context.user_id,
            }
    """,
}


async def test_prompts_are_filled_without_what_they_must_not_see(tmp_path: Path) -> None:
    built, model = engine(project(tmp_path, PROMPTED, PROMPTED_FILES), ["done", "done"])
    headers = {"X-Day": "Monday", "Authorization": "Bearer s3cret", "cookie": "s3cret", "X-B": "b"}
    context = RunContext(
        user_id="u", metadata={"headers": headers}, auth_context=AuthContext(inbound_access_token="s3cret")
    )
    async with built:
        await built.run("hello {{ day }}", context)
        await built.run("again", context)
    system, user = (message["content"] for message in model.requests[0].messages)
    assert system.startswith("Day Monday {{ ticket }} 1, ticket {")
    assert '"before": ["day"]' in system
    assert system.count('["X-B", "X-Day"]') == 3
    assert '"token": null' in system
    assert system.endswith('json {{ {"a": 1} }}.')
    assert user == "Asked on Monday {{ ticket }} 1: hello {{ day }}"
    assert "s3cret" not in str(model.requests)
    assert model.requests[1].messages[-1]["content"] == "Asked on Monday {{ ticket }} 2: again"


async def test_a_resolver_that_fails_fails_the_run_and_shows_its_type_alone(tmp_path: Path) -> None:
    shared = """
    class SharedResolver:
        def day(self, ctx):
            raise KeyError("s3cret")
    """
    built, _ = engine(project(tmp_path, PROMPTED, {**PROMPTED_FILES, "plugins/resolvers/shared.py": shared}), [])
    async with built:
        with pytest.raises(Exception, match="The resolver 'day' for 'a' raised KeyError") as caught:
            await built.run("hello")
    assert "s3cret" not in str(caught.value)


async def test_a_sync_resolver_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    shared = """
    import threading

    class SharedResolver:
        def day(self, ctx):
            return threading.current_thread().name
    """
    files = {"a.md": "{{ day }}", "u.md": "{{ message }}", "plugins/resolvers/shared.py": shared}
    yaml = PROMPTED.replace(", resolvers: [ticket]", "")
    built, model = engine(project(tmp_path, yaml, files), ["done"])
    async with built:
        await built.run("hello")
    assert model.requests[0].messages[0]["content"] not in ("", threading.main_thread().name)


async def test_what_the_file_names_and_is_not_there_fails_the_build_in_one_sentence(tmp_path: Path) -> None:
    built, _ = engine(project(tmp_path / "tool", SIMPLE), [])
    with pytest.raises(SpecError, match=r"tools.echo: 'plugins.tools.echo:echo' cannot be loaded: there is no file"):
        await built.build()
    listed = {"plugins/plugins.toml": '[tools]\necho = "plugins.tools.echo:echo"\n'}
    built, _ = engine(project(tmp_path / "listed", SIMPLE, listed), [])
    with pytest.raises(SpecError, match=r"plugins\.toml:2:1 tools.echo: .* cannot be loaded"):
        await built.build()
    manifest = {**ECHO, "plugins/plugins.toml": '[hooks.plugins]\nx = "plugins.hooks.x:X"\n'}
    yaml = SIMPLE + "hooks: {before_tool: [{plugin: x, method: m}]}\n"
    for source, reason in (
        (None, "there is no file plugins/hooks/x.py beside agents.yaml"),
        ("class X: ...", "X has no method 'm'"),
        ("class X:\n    def mm(self, event): ...", "did you mean 'mm'?"),
        ("class X:\n    def m(self): ...", "it must take one argument, the HookInvocation"),
        ("class X:\n    m = 3", "X.m is no method"),
        ("class X:\n    def __init__(self, a): ...", "making an instance without arguments raised TypeError"),
        ("def X(): ...", "a class is expected there"),
        ("raise ValueError('s3cret')", "importing it raised ValueError at plugins/hooks/x.py:1"),
    ):
        files = {**manifest, **({"plugins/hooks/x.py": source + "\n"} if source else {})}
        built, _ = engine(project(tmp_path / str(abs(hash(reason))), yaml, files), [])
        with pytest.raises(HookLoadError) as caught:
            await built.build()
        assert reason in str(caught.value)
        assert caught.value.point == "before_tool"
        assert "s3cret" not in str(caught.value)


async def test_on_config_may_change_or_refuse_what_was_read(tmp_path: Path) -> None:
    path = project(tmp_path, SIMPLE, ECHO)

    def change(payload: Any) -> None:
        payload.config["system"]["name"] = "changed"

    def break_it(payload: Any) -> None:
        payload.config["agents"]["a"]["tools"] = ["nothing"]

    for hook, outcome in ((change, None), (break_it, SpecError), (lambda payload: "not this file", RunBlocked)):
        hook_id = add_hook("on_config", hook)
        try:
            built, _ = engine(path, ["done"])
            if outcome is None:
                async with built:
                    assert built.loaded.system.system.name == "changed"
            else:
                with pytest.raises(outcome):
                    await built.build()
        finally:
            remove_hook(hook_id)


async def test_a_server_that_cannot_be_reached_stops_what_was_started(tmp_path: Path) -> None:
    yaml = SIMPLE.replace("tools: [echo]", "tools: [echo], mcps: [m]")
    yaml += "mcps: {m: {url: 'http://127.0.0.1:1/mcp'}}\nhooks:\n"
    yaml += "  on_engine_start: [{ref: 'plugins.life:start'}]\n  on_engine_stop: [{ref: 'plugins.life:stop'}]\n"
    life = (
        "import sys\n\ndef start(event):\n    sys.life = ['start']\n\ndef stop(event):\n    sys.life.append('stop')\n"
    )
    built, _ = engine(project(tmp_path, yaml, {**ECHO, "plugins/life.py": life}), [])
    try:
        with pytest.raises(Exception, match="'m'"):
            await built.build()
        assert sys.life == ["start", "stop"]  # type: ignore[attr-defined]  # set by the hooks above
    finally:
        del sys.life  # type: ignore[attr-defined]
    optional = yaml.replace("/mcp'}", "/mcp', required: false}")
    built, _ = engine(project(tmp_path, optional, {**ECHO, "plugins/life.py": life}), ["done"])
    try:
        async with built:
            assert any("'m'" in warning for warning in built.warnings)
            assert (await built.run("hello")).output == "done"
    finally:
        del sys.life  # type: ignore[attr-defined]


async def test_python_hooks_add_to_those_of_the_file_and_one_counter_orders_them(tmp_path: Path) -> None:
    order: list[str] = []
    registry = HookRegistry()
    registry.register_function("before_agent", lambda payload: order.append("given"), sequential=True)
    process_wide = add_hook("before_agent", lambda payload: order.append("process"), sequential=True)
    yaml = SIMPLE + "hooks: {before_agent: [{ref: 'plugins.mark:mark'}]}\n"
    mark = "import sys\n\ndef mark(event):\n    sys.order.append('file')\n"
    sys.order = order  # type: ignore[attr-defined]  # how the hook of the file reaches this test
    platform = FunctionHook(
        event=HookEvent.BEFORE_AGENT, func=lambda payload: order.append("platform"), priority=-1, sequential=True
    )
    try:
        built, _ = engine(
            project(tmp_path, yaml, {**ECHO, "plugins/mark.py": mark}),
            ["done"],
            hooks=registry,
            platform_hooks=[platform],
        )
        async with built:
            late = add_hook("before_agent", lambda payload: order.append("late"), sequential=True)
            await built.run("hello")
            remove_hook(late)
    finally:
        remove_hook(process_wide)
        del sys.order  # type: ignore[attr-defined]
    assert order == ["platform", "given", "process", "file", "late"]


async def test_middleware_and_observers_given_to_an_engine_hold_for_every_node(tmp_path: Path) -> None:
    from agent_engine.agent import HooksConfig

    seen: list[Any] = []
    config = HooksConfig(
        on_step=lambda response: seen.append("step"), on_tool_call=lambda request: seen.append(request.tool_name)
    )
    turns = [call("open", {"message": "go"}), call("echo", {"text": "x"}), "up", "done"]
    built, _ = engine(project(tmp_path, ROUTED, ROUTED_FILES), turns, hooks=config)
    async with built:
        await built.run("hello")
    assert seen == ["step", "open", "step", "echo", "step", "step"]
    with pytest.raises(TypeError, match="HooksConfig"):
        await engine(tmp_path / "agents.yaml", [], hooks=3)[0].build()
    with pytest.raises(ValueError, match="inherit_default"):
        await engine(tmp_path / "agents.yaml", [], hooks=HooksConfig(inherit_default=False))[0].build()


async def test_a_matcher_that_matches_nothing_is_warned_about(tmp_path: Path) -> None:
    yaml = SIMPLE + "hooks:\n  before_tool:\n    - {command: 'true', matcher: 'ecko*', name: typo}\n"
    yaml += "    - {command: 'true', matcher: 'ech*'}\n"
    built, _ = engine(project(tmp_path, yaml, ECHO), [])
    async with built:
        assert len(built.warnings) == 1
        assert "Hook 'typo' on before_tool" in built.warnings[0]
        assert "'ecko*' matches no tool of this engine" in built.warnings[0]
        assert "agents.yaml:8" in built.warnings[0]


async def test_priorities_and_modes_of_the_file_hold_over_its_order(tmp_path: Path) -> None:
    names = ["c", "a", "b"]
    yaml = (
        SIMPLE
        + "hooks:\n  before_tool:\n"
        + "".join(
            f"    - {{ref: 'plugins.mark:{name}', priority: {priority}, sequential: {mode}}}\n"
            for name, priority, mode in zip(names, (90, 10, 50), ("false", "true", "true"), strict=True)
        )
    )
    mark = "import sys\n" + "".join(f"\ndef {name}(event):\n    sys.order.append('{name}')\n" for name in names)
    sys.order = []  # type: ignore[attr-defined]  # how the hooks of the file reach this test
    try:
        built, _ = engine(
            project(tmp_path, yaml, {**ECHO, "plugins/mark.py": mark}), [call("echo", {"text": "x"}), "done"]
        )
        async with built:
            await built.run("hello")
        assert sys.order == ["a", "b", "c"]  # type: ignore[attr-defined]
    finally:
        del sys.order  # type: ignore[attr-defined]


STATEFUL = {
    **ECHO,
    "plugins/plugins.toml": '[hooks.plugins]\ncount = "plugins.hooks.count:CountHook"\n',
    "plugins/hooks/count.py": """
    from plugins.state import NAME

    class CountHook:
        made = 0

        def __init__(self):
            type(self).made += 1
            self.calls = 0

        def count(self, event):
            self.calls += 1
            return f"{NAME} made {self.made}, call {self.calls}"
    """,
}
COUNTED = SIMPLE + "hooks:\n  before_tool: [{plugin: count, method: count}]\n  user_prompt_submit: []\n"


async def test_two_systems_with_plugins_of_one_name_each_run_their_own(tmp_path: Path) -> None:
    async def ask(built: Engine) -> str:
        return str(await built.call_tool("echo", {"text": "x"}))

    paths = [
        project(tmp_path / name, COUNTED, {**STATEFUL, "plugins/state.py": f"NAME = '{name}'\n"})
        for name in ("one", "two")
    ]
    before = set(sys.modules)
    (one, _), (two, _), (twin, _) = engine(paths[0], []), engine(paths[1], []), engine(paths[0], [])
    async with one, two, twin:
        assert (await ask(one)).endswith("Reason: one made 1, call 1")
        assert (await ask(two)).endswith("Reason: two made 1, call 1")
        assert (await ask(one)).endswith("Reason: one made 1, call 2")
        assert (await ask(twin)).endswith("Reason: one made 1, call 1")
    assert not [name for name in set(sys.modules) - before if "plugins.state" in name or "plugins.hooks.count" in name]


async def test_a_hundred_builds_leave_nothing_behind(tmp_path: Path) -> None:
    path = project(tmp_path, COUNTED, {**STATEFUL, "plugins/state.py": "NAME = 'x'\n"})

    async def build() -> None:
        built, _ = engine(path, [])
        async with built:
            await built.call_tool("echo", {"text": "x"})

    await build()
    gc.collect()
    modules, objects = len(sys.modules), len(gc.get_objects())
    for _ in range(100):
        await build()
    gc.collect()
    assert len(sys.modules) == modules
    assert len(gc.get_objects()) < objects + 2_000


async def test_a_hook_of_the_file_fires_once_however_often_the_file_was_loaded(tmp_path: Path) -> None:
    path = project(tmp_path, COUNTED, {**STATEFUL, "plugins/state.py": "NAME = 'x'\n"})
    for _ in range(20):
        built, _ = engine(path, [])
        async with built:
            pass
    built, _ = engine(path, [])
    async with built:
        assert str(await built.call_tool("echo", {"text": "x"})).endswith("made 1, call 1")
        rows = built.scope.hooks(HookEvent.BEFORE_TOOL)
        assert [(hook.name, hook.source.rpartition(":")[2]) for hook in rows] == [("count.count", "7")]


async def test_a_registry_from_the_file_serves_an_agent(tmp_path: Path) -> None:
    from agent_engine.agent import Agent

    path = project(
        tmp_path,
        "hooks:\n  before_tool: [{plugin: count, method: count}]\n",
        {**STATEFUL, "plugins/state.py": "NAME = 'f'\n"},
    )
    registry = HookRegistry.from_yaml(path)

    def echo(text: str) -> str:
        return text

    agent = Agent(name="a", tools=[echo], hooks=registry, model="offline")
    assert str(await agent.acall_tool("echo", {"text": "x"})).endswith("Reason: f made 1, call 1")
    path.write_text("hooks:\n  before_tool: [{plugin: count, method: count, agents: [other], servers: crm}]\n")
    agent = Agent(name="a", tools=[echo], hooks=HookRegistry.from_yaml(path), model="offline")
    assert await agent.acall_tool("echo", {"text": "x"}) == "x"
    path.write_text("hooks:\n  before_tol: []\n")
    with pytest.raises(SpecError, match="did you mean 'before_tool'"):
        HookRegistry.from_yaml(path)


async def test_close_ends_runs_under_way_and_can_be_called_by_many(tmp_path: Path, clock: Clock) -> None:
    started = asyncio.Event()

    async def hang(*_: Any) -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    built, _ = engine(project(tmp_path, SIMPLE, ECHO), [hang])
    await built.build()
    run = asyncio.create_task(built.run("hello"))
    await started.wait()
    closing = asyncio.gather(built.close(), built.close())
    await asyncio.sleep(0.01)
    clock.put_forward(GRACE_SECONDS)
    await closing
    assert run.cancelled()
    with pytest.raises(EngineError):
        await built.run("hello")


async def test_the_tool_of_the_file_keeps_what_its_function_says(tmp_path: Path) -> None:
    tool = """
    from agent_engine import tool

    @tool(approval="required", retries=1)
    def echo(text: str) -> str:
        '''Own words.

        Args:
            text: what to say
        '''
        return text
    """
    built, model = engine(project(tmp_path, SIMPLE, {"plugins/tools/echo.py": tool}), ["done"])
    async with built:
        await built.run("hello")
        assert built.built.tools.local["echo"].approval is True
    definition = model.requests[0].tools[0]
    assert definition.description == "Says it again."
    assert "what to say" in str(definition.parameters)


async def test_a_hook_result_from_yaml_means_what_it_means_in_python(tmp_path: Path) -> None:
    yaml = SIMPLE + "hooks:\n  before_tool:\n    - {ref: 'plugins.gate:rewrite'}\n    - {ref: 'plugins.gate:check'}\n"
    gate = """
    from agent_engine.hooks import HookResult

    def rewrite(event):
        return HookResult.modify(text=event.payload.tool_input["text"].upper())

    def check(event):
        assert event.plugin is None and event.ref == "plugins.gate:check"
        return HookResult.allow() if event.payload.tool_input["text"] == "X" else HookResult.deny("no")
    """
    built, _ = engine(project(tmp_path, yaml, {**ECHO, "plugins/gate.py": gate}), [])
    async with built:
        assert await built.call_tool("echo", {"text": "x"}) == "echo X"
        assert "Reason: no" in str(await built.call_tool("echo", {"text": "y"}))
    assert HookResult.allow().is_allowed()


async def test_a_command_hook_runs_in_the_folder_of_the_file(tmp_path: Path) -> None:
    yaml = SIMPLE + "hooks:\n  before_tool:\n    - {args: [python3, gate.py]}\n"
    gate = """
    import json, sys
    payload = json.load(sys.stdin)
    print(json.dumps({"decision": "deny", "reason": payload["tool_name"]}))
    """
    built, _ = engine(project(tmp_path, yaml, {**ECHO, "gate.py": gate}), [])
    async with built:
        assert str(await built.call_tool("echo", {"text": "x"})).endswith("Reason: echo")


async def test_a_broken_command_under_the_files_default_fails_the_request(tmp_path: Path) -> None:
    yaml = SIMPLE + "hooks:\n  before_tool:\n    - {command: 'exit 1'}\n"
    built, _ = engine(project(tmp_path, yaml, ECHO), [])
    async with built:
        with pytest.raises(HookExecutionError):
            await built.call_tool("echo", {"text": "x"})


async def test_models_are_made_after_the_start_hooks_so_that_those_can_bring_their_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    yaml = "system: {name: x}\nagents: {a: {model: {provider: anthropic, name: some-model}}}\ngraph: {a: }\n"
    path = project(tmp_path, yaml)
    with pytest.raises(Exception, match="ANTHROPIC_API_KEY"):
        await Engine.from_yaml(path).build()
    hook = "import os\n\ndef start(event):\n    os.environ['ANTHROPIC_API_KEY'] = 'k'\n"
    path = project(tmp_path, yaml + "hooks: {on_engine_start: [{ref: 'plugins.s:start'}]}\n", {"plugins/s.py": hook})
    async with Engine.from_yaml(path) as built:
        assert built.loaded.system.root == "a"
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("approver", "latr", "'later' or None, not 'latr'"),
        ("store", 5, "the path of an SQLite file or None, not int"),
        ("records", Path("runs.jsonl"), "such as 'jsonl:runs.jsonl'"),
        ("limits", {"tool_calls": 3}, "limits is a Limits or None, not dict"),
        ("hooks", 5, "hooks takes a HooksConfig"),
    ],
)
async def test_an_option_that_is_no_such_thing_is_refused_before_anything_runs(
    tmp_path: Path, option: str, value: object, words: str
) -> None:
    path = project(tmp_path, "system: {name: demo}\nagents: {a: {}}\ngraph: {a: }\n")
    with pytest.raises(TypeError, match=re.escape(words)):
        async with Engine.from_yaml(path, **{option: value}):
            pass


async def test_a_store_may_be_a_path(tmp_path: Path) -> None:
    path = project(tmp_path, "system: {name: demo}\nagents: {a: {}}\ngraph: {a: }\n")
    context = RunContext(conversation_id="c")
    for _ in range(2):
        built, model = engine(path, ["answer"], store=tmp_path / "kept.db")
        async with built:
            await built.run("hello", context)
    assert [one["content"] for one in model.requests[0].messages if one["role"] == "user"] == ["hello", "hello"]


async def test_a_system_made_in_python_runs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_engine.models.scripted import ScriptedModel
    from agent_engine.spec.system import AgentSpec, System, SystemInfo, ToolSpec

    project(tmp_path, SIMPLE, ECHO)
    monkeypatch.chdir(tmp_path)
    system = System(
        system=SystemInfo(name="made"),
        agents={"a": AgentSpec(tools=["echo"])},
        tools={"echo": ToolSpec(description="x")},
        graph={"a": None},
    )
    async with Engine(system, model=ScriptedModel([call("echo", {"text": "x"}), "done"])) as built:
        assert (await built.run("hello")).output == "done"
    with pytest.raises(SpecError, match="not declared"):
        Engine(system.model_copy(update={"tools": {}}))


async def test_a_stream_that_is_read_after_the_engine_was_closed_runs_nothing(tmp_path: Path) -> None:
    path = project(tmp_path, "system: {name: demo}\nagents: {a: {}}\ngraph: {a: }\n")
    built, model = engine(path, ["never"])
    async with built:
        stream = built.stream("hello")
    with pytest.raises(EngineError, match="this engine is closed"):
        await anext(stream)
    assert model.requests == []


async def test_closing_ends_runs_that_are_under_way_on_other_loops(tmp_path: Path, clock: Clock) -> None:
    stays = "import asyncio\n\nasync def stay() -> str:\n    await asyncio.Event().wait()\n    return 'never'\n"
    path = project(
        tmp_path,
        "system: {name: demo}\nagents: {a: {tools: [stay]}}\ntools: {stay: Stays.}\ngraph: {a: }\n",
        {"plugins/tools/stay.py": stays},
    )
    outcomes: list[BaseException] = []
    heard = asyncio.Event()
    loop = asyncio.get_running_loop()

    def elsewhere() -> None:
        try:
            asyncio.run(built.run("hello"))
        except BaseException as error:  # noqa: BLE001 - looked at below
            outcomes.append(error)

    registry = HookRegistry()
    registry.register_function("before_tool_call", lambda seen: loop.call_soon_threadsafe(heard.set), observe=True)
    built, _ = engine(path, [call("stay"), "never"], hooks=registry)
    await built.build()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    await heard.wait()
    closing = asyncio.create_task(built.close())
    await asyncio.sleep(0.01)
    clock.put_forward(GRACE_SECONDS)
    await closing
    await asyncio.to_thread(thread.join, 60)
    assert [type(error) for error in outcomes] == [asyncio.CancelledError]
