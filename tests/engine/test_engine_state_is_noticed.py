"""A wrong recurrent state is detectable in the logits; the text alone may not show it.

The attention layers of the bundled model carry the facts: it still answers correctly with zeroed
recurrent states. Tests of restored states therefore compare logits or bytes.
"""

from __future__ import annotations

import pytest
import torch
from engine_bench import EngineBench, token_prompt

from kvreg_kernels.testing import Deviation, Tolerance, deviation
from kvreg_service.core.ids import EntryId
from kvreg_service.model.testing import SAME_LOGITS_FP64

SAME_LOGITS_FP32 = Tolerance("engine.same_logits_fp32", relative_rms=1e-5, worst_element=1e-4)
"""The same logits computed in different chunks, in fp32."""

DETECTABLE = 1000
"""A wrong state changes logits by at least this multiple of the rounding tolerance."""

_FACTS = [
    ("system", "You are a helpful assistant."),
    ("user", "My locker code is 4921."),
    ("assistant", "Noted: your locker code is 4921. I will remember that for you."),
    ("user", "The deploy is on Thursday. My cat is named Mila. Can you keep that in mind?"),
]
_QUESTION = ("user", "Please remind me: what is my locker code?")
_OTHER = [("user", "My badge number is 288."), ("user", "The audit starts at 11:30.")]


class LastLogits:
    """Records the logits of the last prefill, which determine the first token of an answer."""

    def __init__(self, model, monkeypatch):
        self.logits = torch.empty(0)
        prefill = model.prefill

        def recording(*arguments):
            self.logits = prefill(*arguments)
            return self.logits

        monkeypatch.setattr(model, "prefill", recording)


def _zero(bench: EngineBench, slot: int) -> None:
    bench.states.recurrent[:, slot] = 0


def _copy_foreign(bench: EngineBench, slot: int) -> None:
    """Copy the state of the most recent request, which is on the lane."""
    bench.states.recurrent[:, slot] = bench.states.recurrent[:, 0]


def _zero_conv(bench: EngineBench, slot: int) -> None:
    bench.states.conv[:, slot] = 0


DAMAGES = [_zero, _copy_foreign, _zero_conv]


@pytest.fixture(params=["tiny", "reference"])
def logits_of_second_turn(request, make_bench, ids, monkeypatch):
    """Functions that return the second turn's logits, after damage or cold, and the tolerance."""
    loaded = request.getfixturevalue(request.param)
    seen = LastLogits(loaded.model, monkeypatch)

    def requests(bench):
        if request.param == "tiny":
            return [
                bench.request(token_prompt(ids(1, 100), 90)),
                bench.request(token_prompt(ids(2, 50), 40)),
                bench.request(token_prompt([*ids(1, 100)[:90], *ids(3, 30)])),
            ]
        return [bench.chat(_FACTS), bench.chat(_OTHER), bench.chat([*_FACTS, _echo, _QUESTION])]

    def play(damage):
        bench = make_bench(loaded)
        first, side, second = requests(bench)
        bench.run(first, side)
        assert bench.kept_at(0).checkpoint is not None
        if damage is not None:
            layout = bench.scheduler.limits.layout
            damage(bench, layout.entry_checkpoint(EntryId(0)))
        (answer,) = bench.run(second)
        assert answer.admission.attach == "registry"
        return seen.logits

    _echo = ("assistant", "Yes, I will keep it in mind.")

    def cold():
        bench = make_bench(loaded, entries=0)
        bench.run(requests(bench)[-1])
        return seen.logits

    tolerance = SAME_LOGITS_FP64 if request.param == "tiny" else SAME_LOGITS_FP32
    return play, cold, tolerance


def _is_detectable(found: Deviation, tolerance: Tolerance) -> bool:
    return found.relative_rms > DETECTABLE * tolerance.relative_rms


def test_restored_state_gives_the_logits_of_a_cold_prompt(logits_of_second_turn):
    play, cold, tolerance = logits_of_second_turn

    assert deviation(play(None), cold()).is_within(tolerance)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_wrong_state_is_detectable_in_the_logits(logits_of_second_turn, damage):
    play, cold, tolerance = logits_of_second_turn

    assert _is_detectable(deviation(play(damage), cold()), tolerance)
