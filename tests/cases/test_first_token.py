"""Case 39: the first token after a hit equals that of a cold prompt, for any number of new tokens.

Compares the most likely token and its log-probability, because equal text can hide a small error.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import pytest
from tests.cases.profiles import Profile
from tests.cases.server import MODEL, Message, Serve, Server

# Each word is one token of the bundled vocabulary.
WORDS = ("code", "is", "the", "user", "of", "service", "to", "notes", "deploy")
ASKED: Message = {"role": "user", "content": "Repeat these words: falcon river maple."}
# Prompts are prefilled in chunks of one page, cold ones in one chunk: fp32 sums differ.
TOLERANCE = 1e-4
PAGE_TOKENS = 64
NEAR_A_PAGE = (1, 2, 62, 63, 64, 65, 66, 126, 127, 128, 129, 130)


@dataclass(frozen=True)
class FirstToken:
    """The most likely first token after a prompt, and the token counts of the prompt."""

    token: str
    logprob: float
    prompt_tokens: int
    cached: int


def _prompt(num_words: int) -> list[Message]:
    """Return a prompt with a begun answer. One more word is one more token at the end."""
    text = " ".join(["Code", *islice(cycle(WORDS), num_words)])
    return [ASKED, {"role": "assistant", "content": text}]


def _continue(server: Server, num_words: int, **options: Any) -> FirstToken:
    body = {
        "model": MODEL,
        "messages": _prompt(num_words),
        "continue_final_message": True,
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 1,
        **server.endless,
        **options,
    }
    answer = server.post_raw(json.dumps(body)).raise_for_status().json()
    (reported,) = answer["choices"][0]["logprobs"]["content"]
    (top,) = reported["top_logprobs"]
    usage = answer["usage"]
    return FirstToken(
        token=top["token"],
        logprob=top["logprob"],
        prompt_tokens=usage["prompt_tokens"],
        cached=usage["prompt_tokens_details"]["cached_tokens"],
    )


@pytest.mark.parametrize(
    ("profile", "base_tokens", "suffixes"),
    [
        # The hit ends inside a page; prompts cross up to three page and chunk boundaries.
        (Profile(), 2 * PAGE_TOKENS - 1, range(1, 131)),
        (Profile(), 2 * PAGE_TOKENS, NEAR_A_PAGE),
        (Profile(), 2 * PAGE_TOKENS + 1, NEAR_A_PAGE),
        (Profile(2, 2), 3 * PAGE_TOKENS - 2, NEAR_A_PAGE),
    ],
    ids=["every-length", "aligned", "one-over", "two-lanes"],
)
def test_case_39_first_token_after_a_hit_equals_that_of_a_cold_prompt(
    serve: Serve, profile: Profile, base_tokens: int, suffixes: range | tuple[int, ...]
) -> None:
    server = serve(profile, prefill_chunk_tokens=PAGE_TOKENS)
    cold = serve(Profile(entries=0), prefix_reuse=False)
    num_words = base_tokens - _continue(cold, 0).prompt_tokens
    base = _continue(server, num_words)
    assert (base.prompt_tokens, base.cached) == (base_tokens, 0)
    for length in suffixes:
        # Unretained, so that the sequence of the base stays as it is for the next length.
        hit = _continue(server, num_words + length, retain_prefix=False)
        control = _continue(cold, num_words + length)
        assert (hit.cached, hit.prompt_tokens) == (base_tokens, base_tokens + length)
        _assert_equal(hit, control)


@pytest.mark.parametrize("profile", [Profile(1, 1, "drop"), Profile(2, 2, "drop")], ids=str)
def test_case_39_first_token_after_a_restored_checkpoint_equals_that_of_a_cold_prompt(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile, prefill_chunk_tokens=PAGE_TOKENS)
    cold = serve(Profile(entries=0), prefix_reuse=False)
    shortest = _continue(server, 0)
    with server.one_lane_left():
        server.ask_side()
    # After the opener of the assistant's message, which every prompt here repeats.
    checkpoint = _continue(server, 1, retain_prefix=False).cached
    assert 0 < checkpoint < shortest.prompt_tokens
    for length in NEAR_A_PAGE:
        num_words = max(0, checkpoint + length - shortest.prompt_tokens)
        hit = _continue(server, num_words, retain_prefix=False)
        assert hit.cached == checkpoint
        _assert_equal(hit, _continue(cold, num_words))


def _assert_equal(hit: FirstToken, control: FirstToken) -> None:
    assert control.cached == 0
    assert hit.token == control.token, (hit, control)
    assert hit.logprob == pytest.approx(control.logprob, abs=TOLERANCE), (hit, control)
