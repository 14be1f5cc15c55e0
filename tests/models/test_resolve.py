"""From what a user wrote to a model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from agent_engine.models.base import Model, ModelSettings
from agent_engine.models.errors import ModelConfigError
from agent_engine.models.offline import OfflineModel
from agent_engine.models.providers import PROVIDERS, canonical
from agent_engine.models.resolve import model_from
from agent_engine.models.scripted import ScriptedModel
from agent_engine.spec.system import PROVIDERS as DECLARABLE
from agent_engine.spec.system import ModelChoice


def test_nothing_is_what_the_variable_says_else_offline(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("- hi")
    assert isinstance(model_from(None, {}), OfflineModel)
    assert isinstance(model_from(None, {"AGENT_ENGINE_MODEL": f"scripted:{tmp_path / 's.yaml'}"}), ScriptedModel)
    assert isinstance(model_from("offline", {"AGENT_ENGINE_MODEL": "nonsense:x"}), OfflineModel)


def test_a_model_of_ones_own_is_taken_as_it_is() -> None:
    mine = ScriptedModel(["x"])
    assert model_from(mine, {}) is mine


async def test_a_declared_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("- hi")
    model = model_from(ModelChoice(provider="scripted", name="s.yaml"), {}, base=tmp_path)
    assert (await model.request([], [], ModelSettings())).text == "hi"
    assert (model.provider, model.name) == ("scripted", "s.yaml")
    assert isinstance(model_from(ModelChoice(provider="offline"), {}), OfflineModel)
    with pytest.raises(ModelConfigError, match="set ANTHROPIC_API_KEY"):
        model_from(ModelChoice(provider="anthropic", name="x"), {})


def test_a_provider_model_says_who_it_is() -> None:
    model = model_from("openai:some-model", {"OPENAI_API_KEY": "sk-test-0123456789"})
    assert isinstance(model, Model)
    assert (model.provider, model.name) == ("openai", "some-model")
    assert "sk-test" not in repr(model)


@pytest.mark.parametrize("value", [3, object(), ["openai"]])
def test_anything_else_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match="A model is text such as"):
        model_from(value, {})  # type: ignore[arg-type]


def test_a_scripted_model_needs_its_file() -> None:
    with pytest.raises(ModelConfigError, match="scripted:PATH"):
        model_from("scripted", {})


def test_every_provider_a_file_may_name_is_known_here() -> None:
    assert {canonical(name) for name in DECLARABLE} - {"offline", "scripted"} == set(PROVIDERS)
    assert get_args(ModelChoice.model_fields["provider"].annotation)


def test_offline_and_scripted_import_no_provider_library() -> None:
    code = (
        "import sys\n"
        "from agent_engine.models.resolve import model_from\n"
        "model_from('offline', {})\n"
        "heavy = {'pydantic', 'pydantic_ai', 'openai', 'httpx2', 'ruamel', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
