"""A plain function, method or callable object becomes a tool: its name, its schema, its arguments, its value."""

from __future__ import annotations

import asyncio
import enum
import functools
import gc
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator

from agent_engine.hooks.managed import RunContext
from agent_engine.hooks.workers import Errand
from agent_engine.tools import function as function_module
from agent_engine.tools.base import ArgumentsInvalid, CallableTool, Tool, ToolInvocation
from agent_engine.tools.function import FunctionTool, tool, tool_of

caller: ContextVar[str] = ContextVar("caller", default="nobody")


def invocation(**fields: Any) -> ToolInvocation:
    return ToolInvocation(RunContext(), **fields)


async def call(made: Tool, **arguments: Any) -> Any:
    return await made.invoke(made.validate(arguments), invocation())


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = 0


@dataclass
class Size:
    width: int
    height: int


def greet(name: str, times: int = 1) -> str:
    """Greet somebody.

    Says it as often as asked.

    Args:
        name: who is greeted
        times: how often
    """
    return " ".join([f"Hello {name}."] * times)


async def greet_later(name: str) -> str:
    await asyncio.sleep(0)
    return f"Later {name}."


class Greeter:
    """Greets in one language."""

    def __init__(self, word: str) -> None:
        self.word = word

    def greet(self, name: str) -> str:
        """Greet with the object's own word."""
        return f"{self.word} {name}"

    async def __call__(self, name: str) -> str:
        return f"called {self.word} {name}"


def add(numbers: list[int], point: Point, size: Size, colour: Colour, when: datetime, kind: Literal["a", "b"]) -> Any:
    return numbers, point, size, colour, when, kind


# Schema


def test_name_description_and_schema_come_from_the_function() -> None:
    made = tool_of(greet)
    assert made.name == "greet"
    assert made.description == "Greet somebody.\n\nSays it as often as asked."
    assert made.parameters == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "who is greeted"},
            "times": {"type": "integer", "default": 1, "description": "how often"},
        },
        "required": ["name"],
        "additionalProperties": False,
    }


NUMPY = """Do it.

Parameters
----------
name : str
    who is greeted
"""
SPHINX = """Do it.

:param name: who is greeted
"""
GOOGLE = """Do it.

Args:
    name (str): who is greeted
"""


@pytest.mark.parametrize("docstring", [NUMPY, SPHINX, GOOGLE])
def test_each_docstring_style_describes_parameters(docstring: str) -> None:
    def greet(name: str) -> str:
        return name

    greet.__doc__ = docstring
    made = FunctionTool(greet)
    assert made.description == "Do it."
    assert made.parameters["properties"]["name"]["description"] == "who is greeted"


def test_a_description_on_the_type_wins_over_the_docstring() -> None:
    def greet(name: Annotated[str, Field(description="from the type", min_length=2)]) -> str:
        """Do it.

        Args:
            name: from the docstring
        """
        return name

    made = FunctionTool(greet)
    assert made.parameters["properties"]["name"] == {
        "type": "string",
        "description": "from the type",
        "minLength": 2,
    }
    with pytest.raises(ArgumentsInvalid):
        made.validate({"name": "x"})


def test_names_that_a_model_class_would_not_take_are_parameters_like_others() -> None:
    def odd(schema: int, model_config: int, _hidden: int, json: int, self_: int, copy: int = 1) -> int:
        return schema + model_config + _hidden + json + self_ + copy

    made = FunctionTool(odd)
    given = {"schema": 1, "model_config": 2, "_hidden": 3, "json": 4, "self_": 5}
    assert made.validate(given) == given
    assert set(made.parameters["required"]) == set(given)


def test_a_default_that_json_cannot_hold_is_left_out_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    def act(key: Any = len) -> Any:
        return key

    assert "default" not in FunctionTool(act).parameters["properties"]["key"]
    assert not recwarn.list


def test_what_a_partial_has_filled_is_out_of_the_models_reach() -> None:
    def find(query: str, tenant: str, limit: int = 3) -> str:
        return f"{query} {tenant} {limit}"

    made = FunctionTool(functools.partial(find, tenant="acme"))
    assert made.name == "find"
    assert set(made.parameters["properties"]) == {"query", "limit"}
    with pytest.raises(ArgumentsInvalid, match="tenant: unknown argument"):
        made.validate({"query": "x", "tenant": "other"})


def test_star_arguments_are_refused_with_what_to_write_instead() -> None:
    def total(*numbers: int) -> int:
        return sum(numbers)

    with pytest.raises(TypeError, match=r"The tool 'total' takes \*numbers.*numbers: list"):
        tool_of(total)


async def test_keyword_arguments_of_any_name_are_taken_and_checked() -> None:
    def note(title: str, **tags: int) -> dict[str, Any]:
        return {"title": title, **tags}

    made = FunctionTool(note)
    assert made.parameters["additionalProperties"] == {"type": "integer"}
    assert await call(made, title="t", a="1") == {"title": "t", "a": 1}
    with pytest.raises(ArgumentsInvalid):
        made.validate({"title": "t", "a": "x"})


async def test_positional_only_parameters_get_their_places() -> None:
    def power(base: int, exponent: int = 2, /, *, negate: bool = False) -> int:
        return -(base**exponent) if negate else base**exponent

    made = FunctionTool(power)
    assert await call(made, base=3) == 9
    assert await call(made, base=3, exponent=3, negate=True) == -27


def test_a_type_that_cannot_be_resolved_names_the_tool_and_the_type() -> None:
    def act(thing: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821 - the point of the test
        pass

    with pytest.raises(TypeError, match="The tool 'act': the type 'Missing'"):
        _ = FunctionTool(act).parameters


def test_a_type_that_json_cannot_fill_names_the_parameter() -> None:
    def act(path: str, lock: threading.Event) -> None:
        pass

    with pytest.raises(TypeError, match="The tool 'act': the type Event of parameter 'lock'"):
        _ = FunctionTool(act).parameters


# Arguments


async def test_arguments_become_what_the_types_say() -> None:
    made = tool_of(add)
    given = {
        "numbers": ["1", 2],
        "point": {"x": 1},
        "size": {"width": 3, "height": 4},
        "colour": "blue",
        "when": "2026-01-02T03:04:05",
        "kind": "a",
    }
    assert await call(made, **given) == (
        [1, 2],
        Point(x=1),
        Size(3, 4),
        Colour.BLUE,
        datetime(2026, 1, 2, 3, 4, 5),
        "a",
    )


def test_a_default_is_the_functions_own_affair() -> None:
    assert tool_of(greet).validate({"name": "Ada"}) == {"name": "Ada"}


def test_every_problem_is_said_at_once_and_no_value_is_repeated() -> None:
    secret = "sk-secret-0123456789"
    with pytest.raises(ArgumentsInvalid) as raised:
        tool_of(greet).validate({"times": secret, "nme": secret})
    text = str(raised.value)
    assert text == (
        "Invalid arguments for tool 'greet': name: required argument is missing; times: Input should be a valid"
        " integer, unable to parse string as an integer; nme: unknown argument. It takes: name, times."
    )
    assert secret not in repr(raised.value.__context__)


def test_a_huge_or_deep_value_does_not_make_a_huge_text() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    for value in ("x" * 5_000_000, deep, {str(n): n for n in range(10_000)}):
        with pytest.raises(ArgumentsInvalid) as raised:
            tool_of(greet).validate({"name": "a", "times": value})
        assert len(str(raised.value)) < 2000


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "name": st.one_of(st.text(max_size=5), st.integers(), st.none()),
            "times": st.one_of(st.integers(0, 3), st.floats(-1e6, 1e6), st.booleans(), st.text(max_size=3)),
            "other": st.integers(),
        },
    )
)
def test_what_the_schema_accepts_the_tool_accepts(arguments: dict[str, Any]) -> None:
    made = tool_of(greet)
    try:
        jsonschema.validate(arguments, made.parameters)
    except jsonschema.ValidationError:
        return
    values = made.validate(arguments)
    assert set(values) == set(arguments)
    assert isinstance(values["name"], str)


# Bodies


async def test_a_sync_body_runs_off_the_loop_with_the_callers_context() -> None:
    def where() -> tuple[bool, str]:
        return threading.current_thread() is threading.main_thread(), caller.get()

    caller.set("Ada")
    assert await call(FunctionTool(where)) == (False, "Ada")


async def test_a_body_that_sets_a_context_variable_is_seen_by_nobody() -> None:
    def change() -> None:
        caller.set("changed")

    caller.set("before")
    await call(FunctionTool(change))
    assert caller.get() == "before"


async def test_every_kind_of_callable_is_called() -> None:
    greeter = Greeter("Hi")
    assert await call(tool_of(greet_later), name="Ada") == "Later Ada."
    assert await call(tool_of(greeter.greet), name="Ada") == "Hi Ada"
    assert await call(FunctionTool(greeter, name="greeter"), name="Ada") == "called Hi Ada"
    assert await call(tool_of(functools.partial(greet_later)), name="Ada") == "Later Ada."
    assert await call(FunctionTool(lambda name: greet_later(name), name="lazy"), name="Ada") == "Later Ada."
    assert tool_of(greeter.greet).name == "greet"
    assert tool_of(greeter.greet).description == "Greet with the object's own word."
    assert FunctionTool(greeter).name == "Greeter"
    assert FunctionTool(greeter).description == "Greets in one language."


async def test_a_generators_items_are_progress_and_its_last_is_the_value() -> None:
    def steps() -> Iterator[str]:
        yield "one"
        yield "two"

    def returning() -> Any:
        yield "one"
        return "done"

    def nothing() -> Iterator[str]:
        yield from ()

    async def later() -> AsyncIterator[str]:
        yield "one"
        await asyncio.sleep(0)
        yield "two"

    for function, value, progress in [
        (steps, "two", ["one", "two"]),
        (returning, "done", ["one"]),
        (nothing, None, []),
        (later, "two", ["one", "two"]),
    ]:
        seen: list[object] = []
        made = FunctionTool(function)
        assert await made.invoke(made.validate({}), invocation(progress=seen.append)) == value
        assert seen == progress


async def test_a_generator_that_is_done_before_anybody_waits_has_told_of_its_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def steps() -> Iterator[str]:
        yield "one"
        yield "two"

    start = Errand.start

    def started_and_done(errand: Errand[Any]) -> None:
        start(errand)
        assert errand._ended.acquire(timeout=20)

    monkeypatch.setattr(Errand, "start", started_and_done)
    seen: list[object] = []
    made = FunctionTool(steps)
    assert await made.invoke(made.validate({}), invocation(progress=seen.append)) == "two"
    assert seen == ["one", "two"]


async def test_an_async_generator_is_closed_when_its_call_is_cancelled() -> None:
    started, closed = asyncio.Event(), asyncio.Event()

    async def endless() -> AsyncIterator[int]:
        try:
            started.set()
            while True:
                yield 1
                await asyncio.sleep(3600)
        finally:
            closed.set()

    task = asyncio.create_task(call(FunctionTool(endless)))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.is_set()


async def test_a_sync_generator_stops_at_its_next_item_when_nobody_waits() -> None:
    loop = asyncio.get_running_loop()
    started, closed = asyncio.Event(), asyncio.Event()
    go_on = threading.Event()

    def endless() -> Iterator[int]:
        try:
            loop.call_soon_threadsafe(started.set)
            while True:
                go_on.wait(30)
                yield 1
        finally:
            loop.call_soon_threadsafe(closed.set)

    task = asyncio.create_task(call(FunctionTool(endless)))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    await asyncio.wait_for(closed.wait(), 30)


async def test_what_a_body_raises_comes_out_as_it_is() -> None:
    def broken() -> None:
        raise KeyError("no such thing")

    with pytest.raises(KeyError, match="no such thing"):
        await call(FunctionTool(broken))


# Names


@pytest.fixture(autouse=True)
def no_names_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_module, "_named", {})


def test_the_decorator_leaves_the_function_as_it_is_and_gives_it_a_name() -> None:
    @tool
    def weather(city: str) -> str:
        return f"rain in {city}"

    @tool(name="forecast", approval="required", retries=2, description="Looks ahead.")
    def look_ahead(city: str) -> str:
        return f"sun in {city}"

    assert weather("Kiel") == "rain in Kiel"
    assert tool_of("weather") is tool_of(weather)
    made = tool_of("forecast")
    assert made is tool_of(look_ahead)
    assert (made.name, made.approval, made.retries, made.description) == ("forecast", True, 2, "Looks ahead.")


def test_an_unknown_name_says_what_there_is_and_what_is_near() -> None:
    with pytest.raises(ValueError, match=r"Unknown tool 'wether'. Tools made with @tool: none yet."):
        tool_of("wether")

    @tool
    def weather() -> None: ...

    with pytest.raises(ValueError, match=r"Unknown tool 'wether'. Did you mean 'weather'\?"):
        tool_of("wether")


def test_two_functions_of_one_name_are_ambiguous_and_a_redefined_one_is_not() -> None:
    def make(value: int) -> Any:
        @tool
        def pick() -> int:
            return value

        return pick

    make(1)
    second = make(2)
    assert tool_of("pick") is tool_of(second)

    @tool(name="pick")
    def another() -> None: ...

    with pytest.raises(ValueError, match="The tool name 'pick' is ambiguous"):
        tool_of("pick")


async def test_a_decorated_method_keeps_its_options_when_it_is_bound() -> None:
    class Notes:
        @tool(name="drop_note", approval="required", retries=1)
        def drop(self, title: str) -> str:
            return f"dropped {title}"

    made = tool_of(Notes().drop)
    assert (made.name, made.approval, made.retries) == ("drop_note", True, 1)
    assert await call(made, title="x") == "dropped x"
    with pytest.raises(ValueError, match="Unknown tool"):
        tool_of("drop_note")


def test_a_wrapper_is_another_tool_than_what_it_wraps() -> None:
    @tool
    def inner(a: int) -> int:
        return a

    @functools.wraps(inner)
    def outer(a: int) -> int:
        return inner(a) + 1

    assert tool_of(outer) is not tool_of(inner)
    assert tool_of(outer).parameters["required"] == ["a"]


@pytest.mark.parametrize("value", [3, None, object()])
def test_what_is_no_tool_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="A tool is a function"):
        tool_of(value)


@pytest.mark.parametrize("options", [{"approval": "sometimes"}, {"retries": -1}, {"retries": True}])
def test_wrong_options_are_refused_where_they_are_given(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="approval is|retries is"):
        tool(**options)(greet)


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(ValueError, match="needs a name"):
        tool_of(lambda: 1)


# Ready-made tools and cost


async def test_a_ready_made_tool_checks_against_its_schema() -> None:
    async def body(arguments: dict[str, Any], call: ToolInvocation) -> str:
        return str(arguments["message"])

    schema = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
    made = CallableTool("child", "A child.", schema, body)
    assert await call(made, message="hi") == "hi"
    for wrong in ({}, {"message": 3}, {"message": True}, {"message": "x", "other": 1}):
        with pytest.raises(ArgumentsInvalid, match="Invalid arguments for tool 'child'"):
            made.validate(wrong)


def test_a_thousand_tools_cost_little_until_they_are_used() -> None:
    def make(number: int) -> Any:
        def act(a: int) -> int:
            """Act."""
            return a + number

        return act

    functions = [make(number) for number in range(1000)]
    tool_of(functions[0])
    gc.collect()
    tracemalloc.start()
    made = [tool_of(function) for function in functions]
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(made) == 1000
    assert used / 1000 < 700
    assert [tool_of(function) for function in functions] == made


class Breaks(BaseModel):
    """A type whose validator breaks."""

    number: int

    @field_validator("number")
    @classmethod
    def breaks(cls, value: int) -> int:
        raise (KeyError, SystemExit)[value]


@pytest.mark.parametrize(("number", "error"), [(0, "KeyError"), (1, "SystemExit")])
def test_a_type_whose_validator_breaks_says_no_to_the_arguments(number: int, error: str) -> None:
    def act(part: Breaks) -> None:
        """Act."""

    with pytest.raises(ArgumentsInvalid, match=rf"could not be checked \({error}\)"):
        FunctionTool(act).validate({"part": {"number": number}})
