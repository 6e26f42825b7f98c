"""Random traffic: outputs equal those of a cold run, reuse is maximal, and no page leaks."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from scheduler_machine import SchedulerMachine
from traffic import ADMIN_ACTIONS, CHANGES, EXTRAS, FAULTS, MAX_CONTEXT, UNTIL_IDLE

from kvreg_service.core.states.policies import POLICIES

MANY_SEEDS = pytest.mark.slow(reason="runs 96 seeds, each about half a second; the first 8 stay")
SEEDS = [*range(8), *(pytest.param(seed, marks=MANY_SEEDS) for seed in range(8, 96))]


@pytest.mark.slow(reason="runs a state machine with thousands of steps")
def test_short_traffic_gives_cold_outputs_and_the_longest_reuse():
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(max_examples=settings().max_examples * 3, stateful_step_count=40),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_long_traffic_gives_cold_outputs_and_the_longest_reuse(seed):
    """Long traffic per profile; the state machine above has many profiles and short traffic."""
    rng = Random(seed)
    machine = SchedulerMachine()
    machine.start(
        lanes=rng.choice([1, 1, 2, 3]),
        entries=rng.choice([0, 1, 2, 3, 4, 4]),
        anchors=rng.choice([0, 1, 2]),
        keep=rng.random() < 0.5,
        policy=rng.choice([*["cost"] * 6, *POLICIES]),
        spare_pages=rng.choice([0, 4, 12, 30, 30]),
        chunk=rng.choice([16, 64, 100, 512]),
        queue_limit=rng.choice([2, 8]),
        quota=rng.choice([None, None, 1, 2, 3]),
    )
    which = 0
    for _ in range(150):
        if rng.random() < 0.3:
            which = rng.randrange(3)
        _play(machine, rng, which)
    machine.teardown()


def _play(machine: SchedulerMachine, rng: Random, which: int) -> None:
    def usually() -> bool:
        return rng.random() < 0.9

    then = rng.choice([UNTIL_IDLE, UNTIL_IDLE, UNTIL_IDLE, UNTIL_IDLE, 1, 3, 0])
    num_words = rng.choice([1, 3, 20, 40, 62, 63, 64, 65])
    think = rng.choice([0, 1, 4])
    max_tokens = rng.choice([1, 2, 7, 20, 70, 10_000])
    extra = rng.choice(EXTRAS)
    actions = {
        "turn": 30,
        "side": 4,
        "sub-agent": 9,
        "postfix": 8,
        "same": 13,
        "continue": 17,
        "tool": 8,
        "edit": 5,
        "almost": 5,
        "inject_fault": 8,
        "administer": 5,
        "steps": 10,
    }
    match rng.choices(list(actions), list(actions.values()))[0]:
        case "turn":
            machine.next_turns(
                which, 1, num_words, think, max_tokens, usually(), usually(), then, extra
            )
        case "sub-agent":
            system = rng.choice(["system", "system", "other", "third"])
            number, marked = rng.randrange(6), rng.random() < 0.2
            machine.start_with_a_shared_head(number, system, which, marked, usually(), then, extra)
        case "administer":
            machine.administer(
                rng.choice(ADMIN_ACTIONS), rng.randrange(20), rng.choice([2.0, 30.0, 500.0])
            )
        case "side":
            size = rng.choice([20, 150])
            machine.unrelated_side_request(rng.randrange(4), size, max_tokens, usually(), then)
        case "postfix":
            machine.side_request_on_the_history(which, num_words, think, usually(), then)
        case "same":
            machine.repeat_the_last_prompt(which, usually(), max_tokens, then)
        case "continue":
            extra = rng.choice([0, 1, 70])
            machine.continue_the_answer(which, extra, usually(), usually(), max_tokens, then)
        case "tool":
            machine.append_a_tool_result(which, num_words, think, usually(), then)
        case "edit":
            machine.edit_an_earlier_turn(which, rng.randrange(3), num_words, think, then)
        case "almost":
            change = rng.choice(CHANGES)
            position = rng.randrange(MAX_CONTEXT)
            machine.submit_a_near_duplicate(which, change, position, usually(), then)
        case "inject_fault":
            what = rng.choice(FAULTS)
            machine.inject_fault(what, rng.randrange(20), rng.choice([0.5, 0.5, 30.0, 61.0, 900.0]))
        case "steps":
            machine.steps(rng.choice([1, 2, 3, 10]), rng.choice([None, None, None, 0]))
