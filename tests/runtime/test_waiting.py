"""A run that stops for a person: what is kept, who may go on with it, and that nothing runs twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

import pytest

from agent_engine import AuthContext, RunContext
from agent_engine.hooks import HookResult, current_run_context, wrap_tool_call
from agent_engine.hooks.middleware import MiddlewareChain, ToolResponse
from agent_engine.hooks.registry import HookRegistry
from agent_engine.memory.sqlite import SqliteStore
from agent_engine.memory.store import ConversationKey, MemoryStore
from agent_engine.runtime.run import resume_request
from agent_engine.runtime.streaming import stream_events

from .run_kit import Made, Trace, call, calls, listen, made, node_of, unbalanced

BLOCKED = "Execution of work was blocked by security policy."


class Runs:
    """Bodies that ran, in order."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    async def work(self, target: str = "x") -> str:
        """Work."""
        self.ran.append(target)
        return f"did {target}"

    async def free(self, target: str = "f") -> str:
        """Work that nobody asks about."""
        self.ran.append(f"free {target}")
        return "freely done"


def asking(registry: HookRegistry | None = None) -> HookRegistry:
    registry = HookRegistry() if registry is None else registry
    registry.register_function(
        "before_tool", lambda seen: HookResult.ask("sure?"), matcher="work", sequential=True, name="asks"
    )
    return registry


def later(turns: list[Any], runs: Runs, **options: Any) -> Made:
    options.setdefault("registry", asking())
    return made(turns, [runs.work, runs.free], approver="later", **options)


async def test_a_run_waits_and_goes_on_where_it_stopped() -> None:
    runs = Runs()
    one = later([calls(("work", {"target": "a"}), ("free", {})), "answer"], runs)
    trace = listen(one.registry)
    waiting = await one.run("go")
    assert (waiting.status, waiting.output) == ("waiting", "")
    assert runs.ran == ["free f"], "the calls beside it are finished"
    (ask,) = waiting.pending
    assert (ask.call_id, ask.tool_name, ask.arguments, ask.reason, ask.agent) == (
        "c1",
        "work",
        {"target": "a"},
        "sure?",
        "root",
    )
    for closing in ("after_agent", "on_run_end", "on_run_error", "session_end"):
        assert closing not in trace.names
    result = await one.resume(waiting.run_id, {"c1": "yes"})
    assert (result.status, result.output, result.run_id) == ("completed", "answer", waiting.run_id)
    assert runs.ran == ["free f", "a"]
    read = [message["content"] for message in one.seen() if message["role"] == "tool"]
    assert read == ["did a", "freely done"]
    assert [message["role"] for message in result.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    for opening in ("on_run_start", "user_prompt_submit", "before_agent", "session_start"):
        assert trace.names.count(opening) == 1
    assert trace.statuses("after_tool") == ["ok", "ok"]
    assert unbalanced(trace.names) == []
    assert trace.names[-2:] == ["on_run_end", "session_end"]


@pytest.mark.parametrize(
    ("word", "text", "ran"), [("yes", "did a", ["a"]), ("session", "did a", ["a"]), ("no", BLOCKED, [])]
)
async def test_each_answer(word: str, text: str, ran: list[str]) -> None:
    runs = Runs()
    one = later([call("work", {"target": "a"}), "answer"], runs)
    waiting = await one.run()
    await one.resume(waiting.run_id, {"c1": word})
    assert (one.tool_text(), runs.ran) == (text, ran)


async def test_approving_one_call_runs_no_other() -> None:
    """Fault 31: after a yes for work(a) the model asks for work(b), under the same call id."""
    runs = Runs()
    one = later([call("work", {"target": "a"}), call("work", {"target": "b"}), "answer"], runs)
    waiting = await one.run()
    again = await one.resume(waiting.run_id, {"c1": "yes"})
    assert again.status == "waiting"
    assert runs.ran == ["a"]
    assert again.pending[0].arguments == {"target": "b"}
    assert (await one.resume(again.run_id, {"c1": "no"})).output == "answer"
    assert runs.ran == ["a"]


async def test_a_yes_for_the_session_covers_the_calls_that_follow() -> None:
    runs = Runs()
    one = later([call("work", {"target": "a"}), call("work", {"target": "b"}), "answer"], runs)
    waiting = await one.run(context=RunContext(conversation_id="c"))
    assert (await one.resume(waiting.run_id, {"c1": "session"})).status == "completed"
    assert runs.ran == ["a", "b"]


async def test_the_ask_is_about_the_rewritten_arguments_and_so_is_the_yes() -> None:
    runs = Runs()
    registry = HookRegistry()
    registry.register_function("before_tool", lambda seen: HookResult.modify(target="rewritten"), sequential=True)
    one = later([call("work", {"target": "a"}), "answer"], runs, registry=asking(registry))
    waiting = await one.run()
    assert waiting.pending[0].arguments == {"target": "rewritten"}
    result = await one.resume(waiting.run_id, {"c1": "yes"})
    assert runs.ran == ["rewritten"]
    assert '{\\"target\\": \\"a\\"}' in json.dumps(result.messages)


async def test_several_asks_may_be_answered_one_by_one() -> None:
    runs = Runs()
    one = later([calls(("work", {"target": "a"}), ("work", {"target": "b"})), "answer"], runs)
    waiting = await one.run()
    assert {ask.call_id for ask in waiting.pending} == {"c1", "c2"}
    again = await one.resume(waiting.run_id, {"c2": "yes"})
    assert (again.status, runs.ran) == ("waiting", ["b"])
    assert [ask.call_id for ask in again.pending] == ["c1"]
    done = await one.resume(waiting.run_id, {"c1": "yes"})
    assert (done.output, runs.ran) == ("answer", ["b", "a"])
    read = [message["content"] for message in one.seen() if message["role"] == "tool"]
    assert read == ["did a", "did b"]


async def test_a_child_waits_inside_its_parent() -> None:
    runs = Runs()
    child = node_of([call("work", {"target": "deep"}), "child is done"], [runs.work], name="child")
    one = made(
        [calls(("child", {"message": "go"}), ("free", {})), "answer"],
        [runs.free],
        children=(child,),
        approver="later",
        registry=asking(),
    )
    trace = listen(one.registry)
    waiting = await one.run()
    assert (waiting.status, runs.ran) == ("waiting", ["free f"])
    assert waiting.pending[0].agent == "child"
    result = await one.resume(waiting.run_id, {"c1": "yes"})
    assert result.output == "answer"
    assert runs.ran == ["free f", "deep"]
    read = [message["content"] for message in one.seen() if message["role"] == "tool"]
    assert read == ["child is done", "freely done"]
    assert unbalanced(trace.names) == []
    assert trace.names.count("subagent_stop") == 1
    assert trace.names.count("before_agent") == 2


async def test_asks_that_share_a_call_id_are_told_apart() -> None:
    runs = Runs()
    first = node_of([call("work", {"target": "1"}), "one"], [runs.work], name="first")
    second = node_of([call("work", {"target": "2"}), "two"], [runs.work], name="second")
    turns = [calls(("first", {"message": "go"}), ("second", {"message": "go"})), "answer"]
    one = made(turns, children=(first, second), approver="later", registry=asking())
    waiting = await one.run()
    by_agent = {ask.agent: ask.call_id for ask in waiting.pending}
    assert len(set(by_agent.values())) == 2
    result = await one.resume(waiting.run_id, {by_agent["first"]: "no", by_agent["second"]: "yes"})
    assert result.output == "answer"
    assert runs.ran == ["2"]


async def test_a_wrapper_is_entered_again_and_its_gates_are_not_asked_twice() -> None:
    @wrap_tool_call
    async def redirect(request: Any, call_next: Any) -> Any:
        request.arguments["target"] = "redirected"
        return await call_next(request)

    runs = Runs()
    registry = HookRegistry()
    seen: list[Any] = []

    def ask(payload: Any) -> Any:
        seen.append(payload.tool_input["target"])
        return HookResult.ask("redirected?") if payload.tool_input["target"] == "redirected" else None

    registry.register_function("before_tool", ask, sequential=True)
    one = later(
        [call("work", {"target": "a"}), "answer"], runs, registry=registry, middleware=MiddlewareChain([redirect])
    )
    waiting = await one.run()
    assert waiting.pending[0].arguments == {"target": "redirected"}
    assert (await one.resume(waiting.run_id, {"c1": "yes"})).output == "answer"
    assert runs.ran == ["redirected"]
    assert seen == ["a", "redirected"]


@pytest.mark.parametrize("deep", [False, True])
async def test_a_further_call_of_a_wrapper_does_not_wait_for_a_person(deep: bool) -> None:
    """To go on with it the wrapper would begin anew, and what it had run before would run twice."""

    @wrap_tool_call
    async def again(request: Any, call_next: Any) -> Any:
        first = await call_next(request)
        return first if first.error is None and not deep else await call_next(request)

    class Breaks(Runs):
        async def work(self, target: str = "x") -> str:
            self.ran.append(target)
            raise ValueError("once more?")

    runs = Breaks()
    registry = HookRegistry()
    chain = MiddlewareChain([again])
    if deep:
        child = node_of(["first", call("work"), "refused"], [runs.work], name="child")
        turns = [call("child", {"message": "go"}), "answer"]
        one = later(turns, runs, registry=asking(registry), middleware=chain, children=(child,))
    else:
        one = later([call("work", {"target": "a"}), "answer"], runs, registry=asking(registry), middleware=chain)
    trace = listen(registry)
    result = await one.run()
    if not deep:
        assert result.status == "waiting"
        result = await one.resume(result.run_id, {"c1": "yes"})
    assert (result.status, runs.ran) == ("completed", [] if deep else ["a"])
    assert one.tool_text() == ("refused" if deep else f'{{"error": "{BLOCKED}"}}')
    assert trace.names.count("after_agent") == (3 if deep else 1)


async def test_a_wrapper_that_catches_everything_holds_no_wait_back() -> None:
    @wrap_tool_call
    async def catches(request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except BaseException:  # noqa: BLE001 - what a user may write
            with contextlib.suppress(BaseException):
                await call_next(request)
            return ToolResponse(request.tool_name, "as if nothing had been", None, request.context)

    runs = Runs()
    child = node_of([call("work", {"target": "deep"}), "child is done"], [runs.work], name="child")
    one = later(
        [call("child", {"message": "go"}), "answer"], runs, children=(child,), middleware=MiddlewareChain([catches])
    )
    trace = listen(one.registry)
    waiting = await one.run()
    assert waiting.status == "waiting"
    (ask,) = waiting.pending
    assert (await one.resume(waiting.run_id, {ask.call_id: "yes"})).output == "answer"
    assert (one.tool_text(), runs.ran) == ("child is done", ["deep"])
    assert unbalanced(trace.names) == []


async def test_counts_and_usage_go_on() -> None:
    runs = Runs()
    turn = {**call("work", {"target": "a"}), "usage": {"input_tokens": 10, "output_tokens": 1}}
    one = later([turn, {"text": "answer", "usage": {"input_tokens": 20, "output_tokens": 2}}], runs)
    waiting = await one.run()
    result = await one.resume(waiting.run_id, {"c1": "yes"})
    assert (result.usage.input_tokens, result.usage.output_tokens) == (30, 3)


async def test_the_conversation_is_kept_when_the_run_has_ended() -> None:
    runs = Runs()
    one = later([call("work"), "answer"], runs)
    context = RunContext(organization_id="o", user_id="u", conversation_id="c")
    key = ConversationKey("o", "u", "c")
    waiting = await one.run("hello", context=context)
    assert await one.host.store.load(key) == []
    await one.resume(waiting.run_id, {"c1": "yes"})
    kept = await one.host.store.load(key)
    assert [message["role"] for message in kept] == ["user", "assistant", "tool", "assistant"]


# Who, how often, how long


async def test_exactly_one_caller_goes_on_with_a_run() -> None:
    runs = Runs()
    one = later([call("work", {"target": "a"}), "answer"], runs)
    waiting = await one.run()
    resumes = [one.resume(waiting.run_id, {"c1": "yes"}) for _ in range(8)]
    outcomes = await asyncio.gather(*resumes, return_exceptions=True)
    assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) == 1
    assert all(isinstance(outcome, LookupError) for outcome in outcomes if isinstance(outcome, BaseException))
    assert runs.ran == ["a"]


async def test_answers_are_checked_before_anything_happens() -> None:
    runs = Runs()
    one = later([call("work", {"target": "a"}), "answer"], runs)
    waiting = await one.run()
    with pytest.raises(ValueError, match="yes, session, no"):
        await one.resume(waiting.run_id, {"c1": "maybe"})
    with pytest.raises(ValueError, match="does not wait for the call 'c7'"):
        await one.resume(waiting.run_id, {"c7": "yes"})
    with pytest.raises(LookupError, match="no-such-run"):
        await one.resume("no-such-run", {})
    with pytest.raises(PermissionError):
        await one.resume(waiting.run_id, {"c1": "yes"}, context=RunContext(user_id="somebody else"))
    assert (await one.resume(waiting.run_id, {"c1": "yes"})).output == "answer"


class Door:
    """The access check of a protected root: who is let in, and who has asked."""

    def __init__(self) -> None:
        self.open = True
        self.asked: list[str | None] = []
        self.passing: asyncio.Event | None = None

    async def __call__(self, state: Any) -> bool:
        context = current_run_context()
        assert context is not None
        assert context == state.run_context
        self.asked.append(context.user_id)
        if self.passing is not None:
            await self.passing.wait()
        return self.open


@pytest.mark.parametrize("given", [None, RunContext(user_id="u")], ids=["its own caller", "a context"])
async def test_a_protected_root_is_asked_again_before_anything_of_the_waiting_run_is_used(given: Any) -> None:
    runs, door = Runs(), Door()
    one = later([call("work", {"target": "a"}), "answer"], runs, visible=door)
    trace = listen(one.registry)
    waiting = await one.run(context=RunContext(user_id="u"))
    before = await one.host.store.load_waiting(waiting.run_id)
    heard = list(trace.names)

    door.open = False
    with pytest.raises(LookupError, match="no agent 'root' for this caller"):
        await one.resume(waiting.run_id, {"c1": "yes"}, context=given)
    with pytest.raises(LookupError):
        async for _ in stream_events(
            lambda emit: resume_request(
                one.node, waiting.run_id, {"c1": "yes"}, host=one.host, context=given, emit=emit
            )
        ):
            pytest.fail("a refused resume tells nothing")
    assert await one.host.store.load_waiting(waiting.run_id) == before
    assert (runs.ran, trace.names) == ([], heard), "refused: it waits on as it was"

    door.open = True
    assert (await one.resume(waiting.run_id, {"c1": "yes"}, context=given)).output == "answer"
    assert (runs.ran, door.asked) == (["a"], ["u"] * 4)


async def test_a_run_that_waits_in_an_agent_which_is_gone_for_its_caller_waits_on() -> None:
    """To go on without it would leave steps open that have begun there."""
    runs, door = Runs(), Door()
    child = node_of([call("work", {"target": "deep"}), "child is done"], [runs.work], name="child", visible=door)
    one = made([call("child", {"message": "go"}), "answer"], children=(child,), approver="later", registry=asking())
    trace = listen(one.registry)
    waiting = await one.run()
    (ask,) = waiting.pending
    before, heard = await one.host.store.load_waiting(waiting.run_id), list(trace.names)

    door.open = False
    with pytest.raises(LookupError, match="waits in the agent 'child', which does not exist for this caller"):
        await one.resume(waiting.run_id, {ask.call_id: "yes"})
    assert (await one.host.store.load_waiting(waiting.run_id), trace.names, runs.ran) == (before, heard, [])

    door.open = True
    assert (await one.resume(waiting.run_id, {ask.call_id: "yes"})).output == "answer"
    assert (runs.ran, unbalanced(trace.names)) == (["deep"], [])


async def test_a_run_whose_conversation_cannot_be_loaded_waits_on() -> None:
    class Broken(MemoryStore):
        broken = False

        async def load(self, key: ConversationKey) -> list[Any]:
            if self.broken:
                raise OSError("no disk")
            return await super().load(key)

    runs, store, context = Runs(), Broken(), RunContext(conversation_id="c")
    first = later([call("work", {"target": "a"})], runs, store=store)
    waiting = await first.run(context=context)
    second = later(["answer"], runs, store=store)
    store.broken = True
    with pytest.raises(OSError, match="no disk"):
        await second.resume(waiting.run_id, {"c1": "yes"})
    store.broken = False
    assert (await second.resume(waiting.run_id, {"c1": "yes"})).output == "answer"
    assert runs.ran == ["a"]


async def test_who_resumes_with_what_a_run_waited_for_before_gets_nothing() -> None:
    """Two people answer one ask each; the second was let in when the run had gone on and waited again."""
    runs, door = Runs(), Door()
    one = later([calls(("work", {"target": "a"}), ("work", {"target": "b"})), "answer"], runs, visible=door)
    waiting = await one.run()
    door.passing = asyncio.Event()
    slow = asyncio.create_task(one.resume(waiting.run_id, {"c2": "yes"}))
    while len(door.asked) < 2:
        await asyncio.sleep(0)
    door.passing, held = None, door.passing
    again = await one.resume(waiting.run_id, {"c1": "yes"})
    held.set()
    with pytest.raises(LookupError, match="gone on elsewhere"):
        await slow
    assert (runs.ran, [ask.call_id for ask in again.pending]) == (["a"], ["c2"])
    assert (await one.resume(waiting.run_id, {"c2": "yes"})).output == "answer"
    assert runs.ran == ["a", "b"]


async def test_a_resume_that_is_cancelled_while_it_claims_the_run_gives_it_back() -> None:
    class Slow(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.reached, self.go_on = asyncio.Event(), asyncio.Event()

        async def remove_waiting(self, run_id: str, document: Any = None) -> bool:
            self.reached.set()
            await self.go_on.wait()
            return await super().remove_waiting(run_id, document)

    runs, store = Runs(), Slow()
    one = later([call("work", {"target": "a"}), "answer"], runs, store=store)
    waiting = await one.run()
    task = asyncio.create_task(one.resume(waiting.run_id, {"c1": "yes"}))
    await store.reached.wait()
    task.cancel()
    await asyncio.sleep(0)
    store.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await one.resume(waiting.run_id, {"c1": "yes"})).output == "answer"
    assert runs.ran == ["a"]


async def test_after_24_hours_the_answer_is_no() -> None:
    runs = Runs()
    one = later([call("work"), "answer"], runs)
    waiting = await one.run()
    document = await one.host.store.load_waiting(waiting.run_id)
    assert document is not None
    await one.host.store.save_waiting(waiting.run_id, {**document, "saved_at": time.time() - 25 * 3600})
    assert (await one.resume(waiting.run_id, {"c1": "yes"})).output == "answer"
    assert (one.tool_text(), runs.ran) == (BLOCKED, [])


async def test_an_ask_that_comes_after_an_old_one_has_24_hours_of_its_own() -> None:
    runs = Runs()
    turns = [calls(("work", {"target": "a"}), ("work", {"target": "b"})), call("work", {"target": "c"}, "c3"), "answer"]
    one = later(turns, runs)
    waiting = await one.run()
    document = await one.host.store.load_waiting(waiting.run_id)
    assert document is not None
    yesterday = time.time() - 23 * 3600
    await one.host.store.save_waiting(waiting.run_id, {**document, "saved_at": yesterday})

    await one.resume(waiting.run_id, {"c1": "yes"})
    document = await one.host.store.load_waiting(waiting.run_id)
    assert document is not None
    assert document["saved_at"] == yesterday, "the second call was asked about yesterday"

    again = await one.resume(waiting.run_id, {"c2": "yes"})
    assert [ask.call_id for ask in again.pending] == ["c3"]
    document = await one.host.store.load_waiting(waiting.run_id)
    assert document is not None
    assert document["saved_at"] > yesterday + 3600


def who() -> RunContext:
    auth = AuthContext(user_id="u", organization_id="o", inbound_access_token="the-token")
    return RunContext(organization_id="o", user_id="u", metadata={"plan": "gold"}, auth_context=auth)


class Identity(Runs):
    async def work(self, target: str = "x") -> str:
        """Work."""
        context = current_run_context()
        assert context is not None
        self.ran.append(f"{context.user_id} {context.metadata} {context.auth_context.inbound_access_token}")
        return "done"


async def test_in_the_same_process_a_run_keeps_its_own_context() -> None:
    runs = Identity()
    one = later([call("work"), "answer"], runs)
    waiting = await one.run(context=who())
    await one.resume(waiting.run_id, {"c1": "yes"})
    assert runs.ran == ["u {'plan': 'gold'} the-token"]
    assert one.host.contexts == {}


async def test_after_a_restart_the_store_gives_the_identity_and_no_token(tmp_path: Any) -> None:
    runs = Identity()
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    first = later([call("work")], runs, store=store)
    waiting = await first.run(context=who())
    await store.close()
    assert b"the-token" not in path.read_bytes()
    for context, token in ((None, None), (who(), "the-token")):
        store = SqliteStore(path)
        document = await store.load_waiting(waiting.run_id)
        assert document is not None
        second = later(["answer"], runs, store=store)
        result = await second.resume(waiting.run_id, {"c1": "yes"}, context=context)
        assert (result.output, result.run_id) == ("answer", waiting.run_id)
        assert runs.ran[-1] == f"u {{'plan': 'gold'}} {token}"
        await store.save_waiting(waiting.run_id, document)
        await store.close()


async def test_a_refusal_before_the_wait_still_counts_after_it() -> None:
    runs = Runs()
    registry = HookRegistry()

    def gate(seen: Any) -> Any:
        return "never" if seen.tool_input.get("target") == "bad" else None

    registry.register_function("before_tool", gate, sequential=True)
    bad = ("work", {"target": "bad"})
    turns = [call(*bad), call("free"), calls(("work", {"target": "a"}), bad), call(*bad), "answer"]
    one = later(turns, runs, registry=asking(registry))
    waiting = await one.run()
    from agent_engine.hooks.errors import RunBlocked

    with pytest.raises(RunBlocked, match="never"):
        await one.resume(waiting.run_id, {"c1": "yes"})


async def test_a_stream_that_waits_says_so() -> None:
    one = later([call("work"), "answer"], Runs())
    events = await one.events()
    assert [event.type for event in events] == ["tool_started", "approval", "tool_finished", "final"] or "hook" in [
        event.type for event in events
    ]
    assert events[-1].data["status"] == "waiting"
    assert events[-1].data["pending"][0]["call_id"] == "c1"
    finished = next(event for event in events if event.type == "tool_finished")
    assert finished.data["status"] == "waiting"


async def test_a_direct_call_cannot_wait() -> None:
    runs = Runs()
    one = later([], runs)
    outcome = await one.direct("work", {"target": "a"})
    assert (outcome.status, runs.ran) == ("denied", [])


async def test_cancelling_a_resumed_run_closes_what_was_open() -> None:
    started = asyncio.Event()

    async def work() -> None:
        """Work."""
        started.set()
        await asyncio.Event().wait()

    one = made([call("work"), "answer"], [work], approver="later", registry=asking())
    trace: Trace = listen(one.registry)
    waiting = await one.run()
    task = asyncio.create_task(one.resume(waiting.run_id, {"c1": "yes"}))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert trace.statuses("after_tool") == trace.statuses("after_agent") == ["cancelled"]
    assert unbalanced(trace.names) == []


async def test_a_gate_that_was_put_up_while_the_run_waited_is_passed_before_the_body() -> None:
    runs = Runs()
    one = later([call("work", {"target": "a"}), "answer"], runs)
    waiting = await one.run()
    one.registry.register_function("before_tool", lambda seen: "closed since noon", name="new rule", sequential=True)
    trace = listen(one.registry, ["after_tool"])
    await one.resume(waiting.run_id, {"c1": "yes"})
    assert (one.tool_text(), runs.ran) == (f"{BLOCKED} Reason: closed since noon", [])
    assert trace.rows == []


async def test_a_new_gate_with_a_name_that_another_has_is_passed_too() -> None:
    runs = Runs()
    registry = HookRegistry()
    registry.register_function("before_tool", lambda seen: HookResult.ask("sure?"), matcher="work")
    one = later([call("work", {"target": "a"}), "answer"], runs, registry=registry)
    waiting = await one.run()
    registry.register_function("before_tool", lambda seen: "closed since noon")
    await one.resume(waiting.run_id, {"c1": "yes"})
    assert runs.ran == []


async def test_a_new_gate_that_rewrites_the_call_makes_it_another_than_the_approved_one() -> None:
    runs = Runs()
    one = later([call("work", {"target": "a"}), "answer"], runs)
    waiting = await one.run()
    one.registry.register_function("before_tool", lambda seen: HookResult.modify(target="b"), sequential=True)
    await one.resume(waiting.run_id, {"c1": "yes"})
    assert runs.ran == []
    assert "not the ones that were approved" in one.tool_text()


async def test_a_prompt_that_a_hook_masked_is_masked_in_the_stored_run() -> None:
    registry = asking()
    registry.register_function("before_agent", lambda seen: HookResult.modify(prompt="[masked]"))
    one = later([call("work"), "answer"], Runs(), registry=registry)
    waiting = await one.run("my secret")
    assert "secret" not in json.dumps(await one.host.store.load_waiting(waiting.run_id))


async def test_a_sync_wrapper_around_a_call_that_waits() -> None:
    @wrap_tool_call
    def redirect(request: Any, call_next: Any) -> Any:
        request.arguments["target"] = "redirected"
        return call_next(request)

    runs = Runs()
    registry = HookRegistry()

    def ask(payload: Any) -> Any:
        return HookResult.ask("?") if payload.tool_input["target"] == "redirected" else None

    registry.register_function("before_tool", ask, sequential=True)
    options: dict[str, Any] = {"registry": registry, "middleware": MiddlewareChain([redirect])}
    one = later([call("work", {"target": "a"}), "answer"], runs, **options)
    waiting = await one.run()
    assert waiting.status == "waiting"
    assert (await one.resume(waiting.run_id, {"c1": "yes"})).output == "answer"
    assert runs.ran == ["redirected"]


async def test_a_tool_that_is_gone_after_the_wait_is_an_error_the_model_reads() -> None:
    store = MemoryStore()
    ran: list[int] = []

    async def work() -> None:
        """Work."""
        ran.append(1)

    before = made([call("work")], [work], approver="later", store=store)
    before.registry.register_function("before_tool", lambda seen: HookResult.ask("sure?"))
    waiting = await before.run()
    after = made(["answer"], approver="later", store=store)
    assert (await after.resume(waiting.run_id, {"c1": "yes"})).output == "answer"
    assert after.tool_text() == '{"error": "There is no tool \'work\'. Tools: none."}'
    assert ran == []


def with_a_child_that_waits(beside: Any, **options: Any) -> Made:
    child = node_of([call("work", {"target": "a"}), "child"], [Runs().work], name="child")
    turns = [calls(("child", {"message": "go"}), ("beside", {}))]
    return made(turns, [beside], children=(child,), registry=asking(), approver="later", **options)


ALL_BUT_THE_ASKED = ["before_tool: 3 opened, 2 closed"]
"""The call that is asked about has not been let through."""


async def test_steps_that_wait_are_closed_when_the_run_ends_all_the_same() -> None:
    reached = asyncio.Event()

    async def beside() -> None:
        """Work on while the other call waits."""
        reached.set()
        await asyncio.Event().wait()

    one = with_a_child_that_waits(beside)
    trace = listen(one.registry)
    task = asyncio.create_task(one.run())
    while not trace.of("before_tool_call") or len(trace.of("before_tool")) < 3 or not reached.is_set():
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert unbalanced(trace.names) == ALL_BUT_THE_ASKED
    assert trace.statuses("after_agent") == ["cancelled", "cancelled"]
    assert len(trace.of("subagent_stop")) == 1


async def test_steps_that_wait_are_closed_when_the_run_cannot_be_stored() -> None:
    class Full(MemoryStore):
        async def save_waiting(self, run_id: str, document: Any) -> None:
            raise OSError("full")

    async def beside() -> None:
        """Nothing."""

    one = with_a_child_that_waits(beside, store=Full())
    trace = listen(one.registry)
    with pytest.raises(OSError, match="full"):
        await one.run()
    assert trace.statuses("after_agent") == ["error", "error"]
    assert unbalanced(trace.names) == ALL_BUT_THE_ASKED
