"""A real engine on the bundled model, with teacher forcing: a test gives the answers.

The model computes states and KV as usual; only the sampled tokens are replaced. The bundled model
was not trained to call tools.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI

from kvreg_service.api.app import create_app
from kvreg_service.core.requests.request import Request
from kvreg_service.core.scheduling.step import StepPlan, StepResult
from kvreg_service.engine.build import LoadedModel, build_engine
from kvreg_service.engine.engine import Engine
from kvreg_service.engine.options import EngineOptions
from kvreg_service.reference_model import REFERENCE_MODEL_PATH
from kvreg_service.settings import Settings


@dataclass
class Teacher:
    """Forces the next answers, in the order in which their requests arrive.

    When ``answers`` is empty, the model answers.
    """

    loaded: LoadedModel
    answers: list[str] = field(default_factory=list)
    _tokens: dict[str, list[int]] = field(default_factory=dict)

    def begin(self, request: Request) -> None:
        """Assign the next answer to this request."""
        if self.answers:
            ids = self.loaded.tokenizer.encode(f"{self.answers.pop(0)}<|im_end|>")
            self._tokens[request.request_id] = ids

    def correct(self, result: StepResult) -> None:
        """Replace the tokens that the model chose by those of the given answer."""
        for request_id in result.sampled:
            if self._tokens.get(request_id):
                result.sampled[request_id] = self._tokens[request_id].pop(0)


@dataclass(frozen=True)
class Taught:
    """The application, its engine and the teacher."""

    app: FastAPI
    engine: Engine
    teacher: Teacher


@contextmanager
def taught_engine(loaded: LoadedModel, settings: Settings, **options: Any) -> Iterator[Taught]:
    """Run an engine that generates the given answers."""
    all_options = {"max_context_tokens": 4096, "num_pages": 256} | options
    engine, prompt_builder = build_engine(
        EngineOptions(REFERENCE_MODEL_PATH, settings.model_id, **all_options), loaded
    )
    teacher = Teacher(loaded)
    runner = engine._parts.runner
    begin, execute = runner.begin, runner.execute

    def begin_taught(request: Request) -> None:
        begin(request)
        teacher.begin(request)

    def execute_taught(plan: StepPlan) -> StepResult:
        result = execute(plan)
        teacher.correct(result)
        return result

    runner.begin, runner.execute = begin_taught, execute_taught  # type: ignore[method-assign]
    try:
        yield Taught(
            create_app(engine, prompt_builder, settings, vocab_size=loaded.config.vocab_size),
            engine,
            teacher,
        )
    finally:
        engine.close()
