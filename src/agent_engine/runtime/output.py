"""Structured output: what the model is told about the wanted type, and reading its answer."""

from __future__ import annotations

import functools
import inspect
import json
from typing import Any

REPAIR_TURNS = 2
"""How often a model whose answer does not fit is asked again."""


class OutputInvalid(ValueError):
    """An answer that does not fit the output type: the type's name, and where it does not fit."""

    def __init__(self, wanted: str, problems: str) -> None:
        super().__init__(wanted, problems)

    def __str__(self) -> str:
        wanted, problems = self.args
        return f"The model's answer does not fit the output type {wanted}: {problems}."

    @property
    def repair(self) -> str:
        """What the model is told."""
        return f"Your answer does not fit the JSON Schema: {self.args[1]}. Answer again with the JSON alone."


class OutputShape:
    """One output type: a pydantic model, a dataclass, or any other type that pydantic can validate.

    Raises:
        TypeError: it is none of these.
    """

    __slots__ = ("_adapter", "_name", "instructions")

    def __init__(self, output_type: Any) -> None:
        from pydantic import TypeAdapter
        from pydantic.errors import PydanticUserError

        try:
            if inspect.isroutine(output_type):
                raise TypeError("a function is no type")
            self._adapter: Any = TypeAdapter(output_type)
            schema = json.dumps(self._adapter.json_schema(), ensure_ascii=False)
        except (PydanticUserError, TypeError, NameError) as problem:
            raise TypeError(
                "output_type is a type that pydantic can validate and describe as JSON, such as a pydantic model, a"
                f" dataclass or list[int], and {output_type!r} is none ({str(problem).splitlines()[0][:200]})."
            ) from problem
        self._name = output_type.__name__ if inspect.isclass(output_type) else str(output_type)
        # What is added to the system text.
        self.instructions = (
            f"Give your final answer as one JSON value that matches this JSON Schema, and nothing else:\n{schema}"
        )

    def parse(self, text: str) -> Any:
        """The object that an answer stands for.

        Raises:
            OutputInvalid: the answer is no JSON or does not fit; the text says where.
        """
        from pydantic import ValidationError

        try:
            return self._adapter.validate_json(_bare(text))
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, problem['loc'])) or 'answer'}: {problem['msg']}"
                for problem in error.errors(include_url=False, include_input=False, include_context=False)[:10]
            )
        raise OutputInvalid(self._name, problems)


def _bare(text: str) -> str:
    """The answer without the code fence that models like to put around JSON."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        text = text[text.index("\n") : -3]
    return text


def shape_of(output_type: Any) -> OutputShape:
    """The shape of an output type; kept for the types used last. Raises TypeError for what is no such type."""
    try:
        hash(output_type)
    except TypeError:
        return OutputShape(output_type)  # a type that cannot be a key
    return _kept_shape(output_type)


_kept_shape = functools.lru_cache(maxsize=128)(OutputShape)
