"""The gate in front of every bench that runs the model: a wrong engine is not worth timing."""

from __future__ import annotations

from bench_run import RedError
from in_process import InProcess
from oracle import Oracle
from prompts import LONG_ANSWER_TOKENS, Session, fresh_nonce, long_answer

from kvreg_service.engine.options import EngineOptions
from kvreg_service.reference_model import REFERENCE_MODEL_PATH


def require_green() -> None:
    """Compare a cold long answer and an answer after a side request with the oracle's.

    Raises:
        RedError: a text differs.
    """
    oracle = Oracle(REFERENCE_MODEL_PATH)
    kvreg = InProcess(EngineOptions(REFERENCE_MODEL_PATH, "reference"))
    try:
        session = Session(fresh_nonce())
        answer = kvreg.ask(session.first, LONG_ANSWER_TOKENS)
        kvreg.ask(session.side_request, LONG_ANSWER_TOKENS)
        for messages in (session.with_user_tail(answer.text), long_answer(fresh_nonce())):
            found = kvreg.ask(messages, LONG_ANSWER_TOKENS).text
            expected = oracle.ask(messages, LONG_ANSWER_TOKENS).text
            if found != expected:
                raise RedError(f"kvreg answers {found!r}, and transformers {expected!r}")
    finally:
        kvreg.close()
