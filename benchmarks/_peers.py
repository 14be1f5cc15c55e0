"""The same work in other frameworks: one agent, an in-process model, a tool that adds.

Each ``make_*`` returns an async function that runs one request with ``calls`` tool calls, one per model message, and
returns the answer's text. They need the packages of the dependency group ``bench``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Run = Callable[[], Awaitable[str]]
ANSWER = "The sum is 3."


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Fake:
    """A model of Agent Engine's own protocol: it asks for the tool until it has been called often enough."""

    name = "fake"
    provider = "bench"

    def __init__(self, calls: int) -> None:
        self.calls = calls

    async def request(self, messages: Any, tools: Any, settings: Any) -> Any:
        from agent_engine.models.base import ModelResponse, ToolCall

        made = 0
        for message in reversed(messages):
            if message["role"] == "user":
                break
            made += message["role"] == "tool"
        if made < self.calls:
            return ModelResponse("", [ToolCall(f"c{made}", "add", {"a": 1, "b": 2})], finish_reason="tool_calls")
        return ModelResponse(ANSWER)

    def stream(self, messages: Any, tools: Any, settings: Any) -> Any:
        raise NotImplementedError


def make_agent_engine(calls: int, hooks: Any = None) -> Run:
    from agent_engine import Agent, Limits

    agent = Agent("calc", "You add.", model=Fake(calls), tools=[add], hooks=hooks, limits=Limits(model_calls=None))

    async def run() -> str:
        await agent.aend_session()
        return str((await agent.arun("What is 1 + 2?")).output)

    return run


def make_agent_engine_alone(calls: int) -> Run:
    """Runs that may go on at the same time: an Agent's calls take turns, an engine's do not."""
    from agent_engine.hooks.scope import default_scope
    from agent_engine.models.base import ModelSettings
    from agent_engine.runtime.host import Host
    from agent_engine.runtime.node import Node
    from agent_engine.runtime.run import run_request
    from agent_engine.tools.function import tool_of

    node = Node(name="calc", prompt="You add.", models=((Fake(calls), ModelSettings()),), tools=(tool_of(add),))
    host = Host(scope=default_scope())

    async def run() -> str:
        return str((await run_request(node, "What is 1 + 2?", host=host)).output)

    return run


def make_turn_after(length: int) -> Run:
    """One more turn of a conversation of ``length`` messages, which stays that long."""
    from agent_engine import Agent, RunContext

    agent = Agent("calc", "You add.", model=Fake(1), tools=[add])
    context = RunContext(conversation_id="talk")

    async def run() -> str:
        result = await agent.arun("What is 1 + 2?", context=context)
        (session,) = agent._host.sessions._open.values()  # type: ignore[union-attr]
        if len(session.messages) < length:
            session.messages[:0] = [{"role": "user", "content": "x" * 100}] * (length - len(session.messages))
        del session.messages[length:]
        return str(result.output)

    return run


def make_agent_framework(calls: int) -> Run:
    from agent_framework import Agent, BaseChatClient, ChatResponse, Content, FunctionInvocationLayer, Message

    class Fake(FunctionInvocationLayer, BaseChatClient):  # type: ignore[misc]
        def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **kwargs: Any) -> Any:
            made = sum(message.role == "tool" for message in messages)

            async def answer() -> ChatResponse:
                if made < calls:
                    call = Content.from_function_call(f"c{made}", "add", arguments={"a": 1, "b": 2})
                    return ChatResponse(messages=Message("assistant", [call]), finish_reason="tool_calls")
                return ChatResponse(messages=Message("assistant", [ANSWER]), finish_reason="stop")

            return answer()

    client = Fake(function_invocation_configuration={"max_iterations": calls + 5})
    agent = Agent(client, "You add.", name="calc", tools=[add])

    async def run() -> str:
        return str((await agent.run("What is 1 + 2?")).text)

    return run


def make_strands(calls: int) -> Run:
    import json

    from strands import Agent, tool
    from strands.models.model import Model

    class Fake(Model):
        def update_config(self, **model_config: Any) -> None:
            return None

        def get_config(self) -> Any:
            return {}

        def structured_output(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

        async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            made = 0
            for message in reversed(messages):
                if message["role"] == "user":
                    if "toolResult" not in message["content"][0]:
                        break
                    made += 1
            yield {"messageStart": {"role": "assistant"}}
            if made < calls:
                yield {"contentBlockStart": {"start": {"toolUse": {"name": "add", "toolUseId": f"c{made}"}}}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps({"a": 1, "b": 2})}}}}
                yield {"contentBlockStop": {}}
                yield {"messageStop": {"stopReason": "tool_use"}}
            else:
                yield {"contentBlockStart": {"start": {}}}
                yield {"contentBlockDelta": {"delta": {"text": ANSWER}}}
                yield {"contentBlockStop": {}}
                yield {"messageStop": {"stopReason": "end_turn"}}

    plus = tool(add)

    async def run() -> str:
        # One object serves one conversation and one call at a time.
        agent = Agent(Fake(), tools=[plus], system_prompt="You add.", callback_handler=None)
        return str(await agent.invoke_async("What is 1 + 2?")).strip()

    agent = Agent(Fake(), tools=[plus], system_prompt="You add.", callback_handler=None)

    async def run_again() -> str:
        agent.messages.clear()
        return str(await agent.invoke_async("What is 1 + 2?")).strip()

    run_again.concurrent = run  # type: ignore[attr-defined]
    return run_again


def make_pydantic_ai(calls: int) -> Run:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.usage import UsageLimits

    def answer(messages: Any, info: Any) -> ModelResponse:
        made = sum(isinstance(part, ToolReturnPart) for message in messages for part in message.parts)
        if made < calls:
            return ModelResponse(parts=[ToolCallPart("add", {"a": 1, "b": 2}, f"c{made}")])
        return ModelResponse(parts=[TextPart(ANSWER)])

    agent = Agent(FunctionModel(answer), instructions="You add.", name="calc")
    agent.tool_plain(add)
    limits = UsageLimits(request_limit=None)

    async def run() -> str:
        return str((await agent.run("What is 1 + 2?", usage_limits=limits)).output)

    return run


PEERS: dict[str, Callable[[int], Run]] = {
    "agent-framework-core": make_agent_framework,
    "strands-agents": make_strands,
    "pydantic-ai-slim": make_pydantic_ai,
}
