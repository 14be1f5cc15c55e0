"""The offline model on tools it has never seen: what it calls, with which arguments, and what it says then."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_engine.models import messages as m
from agent_engine.models.base import Message, Model, ModelResponse, ModelSettings, ToolCall, ToolDefinition
from agent_engine.models.offline import NOTHING, SIGNATURE, OfflineModel

SETTINGS = ModelSettings()


def define(
    name: str, description: str, /, required: tuple[str, ...] | None = None, **properties: Any
) -> ToolDefinition:
    wanted = list(properties) if required is None else list(required)
    return ToolDefinition(name, description, {"type": "object", "properties": properties, "required": wanted})


def text(description: str = "") -> dict[str, Any]:
    return {"type": "string", "description": description}


WEATHER = define(
    "get_weather",
    "Get the weather of a city.",
    ("city",),
    city=text("the city's name, such as Paris"),
    unit={"enum": ["celsius", "fahrenheit"]},
)
ADD = define("add_numbers", "Add two numbers and return their sum.", a={"type": "integer"}, b={"type": "integer"})
CALCULATE = define("calculate", "Work out an arithmetic expression.", expression=text())
SEND = define("send_email", "Send an email to somebody.", to=text("an email address"), email=text(), body=text())
LIST_FILES = define("list_files", "List the names of all files.")
READ_FILE = define("read_file", "Read one file by its name.", name=text("the file's name, such as report.txt"))
DELETE_FILE = define("delete_file", "Delete one file by its name.", name=text("the file's name"))
SEARCH = define(
    "search_books", "Search the library's books for words.", ("query",), query=text(), limit={"type": "integer"}
)
ORDER = define("find_order", "Find an order by its number.", number={"type": "integer", "minimum": 1000})
FETCH = define("fetch_page", "Fetch a web page.", url=text())
TURN = define("switch_light", "Switch a light in a room on or off.", room={"enum": ["kitchen", "living room"]})
EVERYTHING = [WEATHER, ADD, CALCULATE, LIST_FILES, READ_FILE, DELETE_FILE, SEARCH, ORDER, FETCH, TURN]


async def respond(messages: list[Message], tools: list[ToolDefinition]) -> ModelResponse:
    return await OfflineModel().request(messages, tools, SETTINGS)


async def first_call(question: str, tools: list[ToolDefinition] | None = None) -> tuple[str, dict[str, Any]]:
    response = await respond([m.system("Help."), m.user(question)], EVERYTHING if tools is None else tools)
    (call,) = response.tool_calls
    return call.name, call.arguments


async def converse(
    question: str,
    tools: list[ToolDefinition],
    results: Callable[[ToolCall], str],
    before: list[Message] | None = None,
) -> tuple[list[ToolCall], str]:
    """Play a whole conversation; the calls that were made, and the answer."""
    history: list[Message] = [m.system("Help."), *(before or []), m.user(question)]
    made: list[ToolCall] = []
    for _ in range(12):
        response = await respond(history, tools)
        history.append(m.assistant_from(response))
        if not response.tool_calls:
            return made, response.text
        for call in response.tool_calls:
            made.append(call)
            history.append(m.tool(call.id, call.name, results(call)))
    raise AssertionError("the offline model went on and on")


@pytest.mark.parametrize(
    ("question", "tool", "arguments"),
    [
        ("What is the weather in Paris?", "get_weather", {"city": "Paris"}),
        (
            "What's the weather like in “New York” in fahrenheit?",
            "get_weather",
            {"city": "New York", "unit": "fahrenheit"},
        ),
        ("What is the sum of 17 and 25?", "add_numbers", {"a": 17, "b": 25}),
        ("Please add 3 and -4", "add_numbers", {"a": 3, "b": -4}),
        ("How much is (3 + 4) * 12?", "calculate", {"expression": "(3 + 4) * 12"}),
        ("Read the file report.txt", "read_file", {"name": "report.txt"}),
        ("Show me `notes.md` please, that file", "read_file", {"name": "notes.md"}),
        ("Delete the file old.log", "delete_file", {"name": "old.log"}),
        ("Which files are there? List them.", "list_files", {}),
        ("Where is order 4711?", "find_order", {"number": 4711}),
        ("What does https://example.org/about say?", "fetch_page", {"url": "https://example.org/about"}),
        ("Switch the light in the living room off", "switch_light", {"room": "living room"}),
    ],
)
async def test_the_tool_and_its_arguments_fit_the_question(question: str, tool: str, arguments: dict[str, Any]) -> None:
    assert await first_call(question) == (tool, arguments)


async def test_a_free_text_parameter_gets_the_question_itself() -> None:
    question = "Which books are about gardening by the sea?"
    name, arguments = await first_call(question)
    assert (name, arguments["query"]) == ("search_books", question)


async def test_an_optional_parameter_stays_away_unless_the_question_holds_it() -> None:
    find = define("search_books", "Search books.", ("query",), query=text(), limit={"type": "integer"})
    assert (await first_call("books about bees", [find]))[1] == {"query": "books about bees"}
    assert (await first_call("the best 5 books about bees", [find]))[1]["limit"] == 5


async def test_an_optional_parameter_takes_what_is_unmistakably_like_its_example() -> None:
    clock = define("tell_time", "Tell the time.", (), zone=text("an IANA time zone, such as Europe/Vienna"))
    (call,) = (await OfflineModel().request([m.user("What time is it in Asia/Tokyo?")], [clock], SETTINGS)).tool_calls
    assert call.arguments == {"zone": "Asia/Tokyo"}
    (call,) = (await OfflineModel().request([m.user("What time is it in Tokyo?")], [clock], SETTINGS)).tool_calls
    assert call.arguments == {}


async def test_a_code_name_speaks_for_the_tool_that_knows_code() -> None:
    docs = define("python_docs", "Explains Python modules and functions.", name=text("a name such as json.dumps"))
    notes = define("notes", "Reads the team's notes.", title=text("a title such as onboarding"))
    assert await first_call("What does os.path.join do?", [notes, docs]) == ("python_docs", {"name": "os.path.join"})


async def test_a_tool_that_changes_something_is_only_used_when_that_is_asked() -> None:
    calls, _ = await converse("What does the file old.log say?", [DELETE_FILE, LIST_FILES], lambda call: "- old.log")
    assert "delete_file" not in {call.name for call in calls}
    calls, said = await converse("What does the file old.log say?", [DELETE_FILE], lambda call: "deleted")
    assert calls == []
    assert NOTHING in said


FILES = "Files:\n- garden-plan.txt\n- holiday-list.txt\n- tax-2025.txt"
CONTENTS = {"garden-plan.txt": "Garden plan\n\nTomatoes go to the south wall in May.", "tax-2025.txt": "Pay by June."}


def files(call: ToolCall) -> str:
    if call.name == "list_files":
        return FILES
    return CONTENTS.get(call.arguments["name"], json.dumps({"error": f"no file named {call.arguments['name']!r}"}))


async def test_a_thing_nobody_named_is_looked_up_first() -> None:
    calls, said = await converse(
        "What does the file about the garden say?", [READ_FILE, LIST_FILES, DELETE_FILE], files
    )
    assert [(call.name, call.arguments) for call in calls] == [
        ("list_files", {}),
        ("read_file", {"name": "garden-plan.txt"}),
    ]
    assert "Tomatoes go to the south wall in May." in said
    assert 'Source: read_file(name="garden-plan.txt")' in said
    assert SIGNATURE in said


async def test_asked_for_the_list_it_stops_at_the_list() -> None:
    calls, said = await converse("List all files, please.", [READ_FILE, LIST_FILES, DELETE_FILE], files)
    assert [call.name for call in calls] == ["list_files"]
    assert "holiday-list.txt" in said


async def test_an_error_that_names_what_is_near_leads_on() -> None:
    def read(call: ToolCall) -> str:
        if call.arguments["name"] == "strptime":
            return json.dumps({"error": "There is no member 'strptime'. Near it: time.strptime, datetime.strftime."})
        return "time.strptime parses a string to a struct_time."

    docs = define("read_docs", "Read the documentation of a function.", name=text("such as json.dumps"))
    calls, said = await converse("What does the function strptime do?", [docs], read)
    assert [call.arguments["name"] for call in calls] == ["strptime", "time.strptime"]
    assert "parses a string" in said


async def test_a_result_that_was_cut_leads_to_the_part_that_is_asked_for() -> None:
    def read(call: ToolCall) -> str:
        if call.arguments["name"] == "json":
            parts = "\n".join(f"- json.part{n}: something else" for n in range(20))
            return f"json\n\n- json.dumps: serialize to text\n{parts}\n… [truncated]"
        return "dumps(obj, sort_keys=False) serializes to text; sort_keys sorts the keys."

    docs = define(
        "read_docs", "Read the documentation of a module or function.", name=text("such as json or json.dumps")
    )
    calls, said = await converse("How does the json module serialize to text?", [docs], read)
    assert [call.arguments["name"] for call in calls] == ["json", "json.dumps"]
    assert "sort_keys sorts the keys" in said
    calls, said = await converse("What is in the json module?", [docs], read)
    assert len(calls) == 1
    assert "Only a part of this result was shown to me." in said


async def test_results_as_json_are_read_as_people_would_write_them() -> None:
    find = define("search_books", "Search the books.", query=text())
    read = define("read_book", "Read a book by its id.", book_id=text())
    found = json.dumps([{"id": "b-1", "title": "On bees", "year": 1901}, {"id": "b-2", "title": "On trees"}])
    calls, said = await converse(
        "What does the book on trees say?",
        [find, read],
        lambda call: found if call.name == "search_books" else json.dumps({"result": "Trees grow slowly."}),
    )
    assert calls[-1].name == "read_book"
    assert calls[-1].arguments == {"book_id": "b-2"} or "On trees" in calls[-1].arguments["book_id"]
    assert "Trees grow slowly." in said


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_refusal_is_said_with_its_reason_and_not_worked_around(wrapped: bool) -> None:
    refusal = "Execution of delete_file was blocked by security policy. Reason: files are kept for the record"

    def results(call: ToolCall) -> str:
        return FILES if call.name == "list_files" else json.dumps({"error": refusal}) if wrapped else refusal

    purge = define("purge_file", "Remove a file by its name for good.", name=text())
    calls, said = await converse("Delete the file about the garden", [DELETE_FILE, LIST_FILES, purge], results)
    assert [call.name for call in calls][-1] in ("delete_file", "purge_file")
    assert len(calls) == 2
    assert "was refused; the reason given: files are kept for the record" in said


async def test_a_refusal_without_a_reason_says_that_none_was_given() -> None:
    _, said = await converse(
        "Read the file a.txt", [READ_FILE], lambda call: "Execution of read_file was blocked by security policy."
    )
    assert 'read_file(name="a.txt") was refused; no reason was given.' in said


async def test_an_error_is_said_plainly() -> None:
    _, said = await converse("Read the file a.txt", [READ_FILE], lambda call: json.dumps({"error": "disk on fire"}))
    assert said.startswith(NOTHING)
    assert 'read_file(name="a.txt") failed: disk on fire' in said


PLANTS = define("plants", "Knows plants, trees and gardens.", message=text())
MONEY = define("money", "Knows prices, taxes and money.", message=text())


async def test_a_router_passes_the_message_on_and_answers_with_the_childs_answer() -> None:
    question = "When do the trees in the garden bloom?"
    calls, said = await converse(question, [MONEY, PLANTS], lambda call: f"In May.\n\nSource: book()\n\n{SIGNATURE}")
    assert [(call.name, call.arguments) for call in calls] == [("plants", {"message": question})]
    assert said == f"plants answered:\n\nIn May.\n\nSource: book()\n\n{SIGNATURE}"


async def test_a_router_asks_the_next_one_when_the_first_knows_nothing() -> None:
    calls, said = await converse(
        "Which tax is on trees in a garden?",
        [MONEY, PLANTS],
        lambda call: f"{NOTHING} I tried." if call.name == "plants" else "Seven percent.",
    )
    assert {call.name for call in calls} == {"plants", "money"}
    assert "money answered:\n\nSeven percent." in said


async def test_where_it_is_nobodys_field_everybody_is_asked_and_the_best_answer_taken() -> None:
    calls, said = await converse(
        "Who won the regatta?", [MONEY, PLANTS], lambda call: "Ada won the regatta." if call.name == "plants" else "Eh."
    )
    assert len(calls) == 2
    assert "plants answered:\n\nAda won the regatta." in said
    _, said = await converse("Who won the regatta?", [MONEY, PLANTS], lambda call: NOTHING)
    assert said.startswith(NOTHING)


async def test_a_short_question_looks_back_for_what_it_is_about() -> None:
    version = define("package_version", "Get the version of a package.", name=text("a package such as pydantic"))
    before = [m.user("What is the package httpx2 for?"), m.assistant("For HTTP.")]
    calls, _ = await converse("And which version is it?", [version], lambda call: "2.1", before)
    assert calls[0].arguments == {"name": "httpx2"}


async def test_without_tools_it_says_what_it_is() -> None:
    for tools in ([], [WEATHER]):
        said = (await respond([m.user("Tell me a joke")], tools)).text
        assert NOTHING in said
        assert "This is the offline model" in said
    assert "no question" in (await respond([m.system("x")], [])).text


async def test_the_last_call_without_tools_answers_from_what_there_is() -> None:
    call = ToolCall("1", "get_weather", {"city": "Kiel"})
    history = [m.user("What is the weather in Kiel?"), m.assistant(None, [call]), m.tool("1", "get_weather", "Rain.")]
    assert (await respond(history, [])).text.startswith('Rain.\n\nSource: get_weather(city="Kiel")')


async def test_a_stream_is_the_same_text_in_words() -> None:
    model: Model = OfflineModel()
    items = [item async for item in model.stream([m.user("Hello  there,\nyou")], [], SETTINGS)]
    whole = items[-1]
    assert isinstance(whole, ModelResponse)
    assert len(items) > 5
    assert "".join(str(item) for item in items[:-1]) == whole.text
    assert whole.usage.total > 0


async def test_a_long_text_to_summarize_is_shortened() -> None:
    request = "Summarize this conversation:\n\n" + "\n\n".join(f"user: point {n}\n{'x' * 200}" for n in range(5))
    said = (await respond([m.user(request)], [])).text
    assert "user: point 3" in said
    assert len(said) < len(request)


schemas = st.dictionaries(
    st.sampled_from(["query", "name", "count", "when", "flag", "items", "mode", "data", "url"]),
    st.sampled_from(
        [
            {"type": "string"},
            {"type": "integer", "maximum": 3},
            {"type": ["string", "null"]},
            {"anyOf": [{"type": "number"}, {"type": "null"}]},
            {"type": "boolean"},
            {"type": "array", "items": {"type": "string"}},
            {"type": "object"},
            {"enum": ["a", 2, None]},
            {"$ref": "#/$defs/X"},
            {},
        ]
    ),
    max_size=4,
)
tools_of_any_kind = st.lists(
    st.builds(
        lambda name, properties, few: ToolDefinition(
            name, f"{name} things", {"type": "object", "properties": properties, "required": list(properties)[:few]}
        ),
        st.sampled_from(["find_thing", "list_things", "read", "delete_thing", "child", "x"]),
        schemas,
        st.integers(0, 4),
    ),
    max_size=4,
)


@given(tools_of_any_kind, st.text(max_size=80), st.lists(st.one_of(st.text(max_size=60), st.just(FILES)), min_size=1))
async def test_whatever_comes_it_ends_never_repeats_itself_and_is_the_same_again(
    tools: list[ToolDefinition], question: str, texts: list[str]
) -> None:
    def results(call: ToolCall) -> str:
        return texts[len(call.name + json.dumps(call.arguments)) % len(texts)]

    calls, said = await converse(question, tools, results)
    assert len(calls) <= 4
    made = [(call.name, json.dumps(call.arguments, sort_keys=True)) for call in calls]
    assert len(set(made)) == len(made)
    assert len({call.id for call in calls}) == len(calls)
    assert (await converse(question, tools, results)) == (calls, said)
