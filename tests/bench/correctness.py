"""Correctness check before the benches that run the model."""

from __future__ import annotations

from bench_run import BenchFailed
from in_process import InProcess
from oracle import Oracle
from prompts import LONG_ANSWER_TOKENS, Session, fresh_nonce, long_answer

from kvreg_service.engine.options import EngineOptions
from kvreg_service.reference_model import REFERENCE_MODEL_PATH


def require_correct() -> None:
    """Compare a cold long output and an output after a side request with the oracle's.

    Raises:
        BenchFailed: a text differs.
    """
    oracle = Oracle(REFERENCE_MODEL_PATH)
    kvreg = InProcess(EngineOptions(REFERENCE_MODEL_PATH, "reference"))
    try:
        session = Session(fresh_nonce())
        answer = kvreg.complete(session.first, LONG_ANSWER_TOKENS)
        kvreg.complete(session.side_request, LONG_ANSWER_TOKENS)
        for messages in (session.with_user_tail(answer.text), long_answer(fresh_nonce())):
            found = kvreg.complete(messages, LONG_ANSWER_TOKENS).text
            expected = oracle.complete(messages, LONG_ANSWER_TOKENS).text
            if found != expected:
                raise BenchFailed(f"kvreg generates {found!r}, transformers {expected!r}")
    finally:
        kvreg.close()
