"""Generated tokens that differ from the encoding are spliced into the same conversation only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvreg_service.chat.conversation import Conversation
from kvreg_service.chat.echo.echo_index import EchoIndex
from kvreg_service.chat.prompt.builder import PromptBuilder
from kvreg_service.chat.prompt.template import ChatTemplate
from kvreg_service.chat.tokens.tokenizer import Tokenizer

TemplateOf = Callable[[str], ChatTemplate]

_USER = {"role": "user", "content": "Say something."}
_OTHER_USER = {"role": "user", "content": "Say something else."}


class Talk:
    """A prompt builder with its echo index, for one exchange."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, max_tokens: int) -> None:
        self.tokenizer = tokenizer
        self.echo = EchoIndex(tokenizer, max_tokens=max_tokens)
        self._builder = PromptBuilder(tokenizer, template, self.echo)

    def prompt(self, *messages: dict[str, str], tenant: str = "default") -> list[int]:
        conversation = Conversation(messages, preserve_thinking=True)
        return list(self._builder.build(conversation, tenant).token_ids)

    def answer(self, ids: list[int], user: dict[str, str] = _USER) -> list[int]:
        """Record ``ids`` as the answer to ``user``; return the tokens of prompt and answer."""
        prompt = self.prompt(user)
        self.echo.record(prompt, ids)
        return prompt + ids

    def echoed(
        self, ids: list[int], user: dict[str, str] = _USER, tenant: str = "default"
    ) -> list[int]:
        answer = {"role": "assistant", "content": self.tokenizer.decode(ids)}
        return self.prompt(user, answer, tenant=tenant)


@pytest.fixture
def talk(tokenizer: Tokenizer, template_of: TemplateOf) -> Talk:
    return Talk(tokenizer, template_of("reference"), max_tokens=10_000)


@pytest.fixture(scope="module")
def unusual(tokenizer: Tokenizer) -> list[int]:
    """A sentence encoded letter by letter, as no tokenizer would."""
    return [token_id for letter in "Noted: Monday." for token_id in tokenizer.encode(letter)]


def test_an_unusual_answer_is_spliced(talk: Talk, unusual: list[int]) -> None:
    ledger = talk.answer(unusual)
    assert talk.echoed(unusual)[: len(ledger)] == ledger


def test_without_a_record_the_tokenizer_chooses(talk: Talk, unusual: list[int]) -> None:
    ledger = talk.prompt(_USER) + unusual
    assert talk.echoed(unusual)[: len(ledger)] != ledger


def test_an_end_token_ends_the_answer(talk: Talk, unusual: list[int]) -> None:
    (end,) = talk.tokenizer.encode("<|im_end|>")
    ledger = talk.answer([*unusual, end])
    assert talk.echoed(unusual)[: len(ledger)] == ledger


def test_the_splice_does_not_change_the_text(talk: Talk, unusual: list[int]) -> None:
    before = talk.tokenizer.decode(talk.echoed(unusual))
    talk.answer(unusual)
    assert talk.tokenizer.decode(talk.echoed(unusual)) == before


def test_another_conversation_keeps_the_choice_of_the_tokenizer(
    talk: Talk, unusual: list[int]
) -> None:
    before = talk.echoed(unusual, _OTHER_USER)
    talk.answer(unusual)
    assert talk.echoed(unusual, _OTHER_USER) == before


def test_two_conversations_keep_their_own_tokens(talk: Talk, unusual: list[int]) -> None:
    (no,) = talk.tokenizer.encode("No")
    other = [no, *unusual[2:]]
    first, second = talk.answer(unusual), talk.answer(other, _OTHER_USER)
    assert talk.echoed(unusual)[: len(first)] == first
    assert talk.echoed(other, _OTHER_USER)[: len(second)] == second


def test_another_tenant_keeps_the_choice_of_the_tokenizer(talk: Talk, unusual: list[int]) -> None:
    before = talk.echoed(unusual, tenant="other")
    talk.answer(unusual)
    assert talk.echoed(unusual, tenant="other") == before


def test_a_tenant_gets_its_own_tokens_back(talk: Talk, unusual: list[int]) -> None:
    (no,) = talk.tokenizer.encode("No")
    other = [no, *unusual[2:]]
    ledger = talk.answer(unusual)
    talk.echo.record(talk.prompt(_USER), other, "other")
    assert talk.echoed(unusual)[: len(ledger)] == ledger
    assert talk.echoed(other, tenant="other")[: len(ledger) - 1] == talk.prompt(_USER) + other


def test_many_answers_of_a_tenant_leave_those_of_another(
    tokenizer: Tokenizer, template_of: TemplateOf, unusual: list[int]
) -> None:
    talk = Talk(tokenizer, template_of("reference"), max_tokens=3 * len(unusual))
    ledger = talk.answer(unusual)
    for number in range(10):
        talk.echo.record(talk.prompt({"role": "user", "content": f"{number}?"}), unusual, "other")
    assert talk.echoed(unusual)[: len(ledger)] == ledger


def test_a_later_turn_still_gets_every_splice(talk: Talk, unusual: list[int]) -> None:
    answer = {"role": "assistant", "content": talk.tokenizer.decode(unusual)}
    talk.answer(unusual)
    prompt = talk.prompt(_USER, answer, _OTHER_USER)
    talk.echo.record(prompt, unusual)
    following = talk.prompt(_USER, answer, _OTHER_USER, answer)
    assert following[: len(prompt) + len(unusual)] == prompt + unusual


def test_the_choice_of_the_tokenizer_is_not_kept(talk: Talk) -> None:
    talk.answer(talk.tokenizer.encode("Noted: Monday.<|im_end|>"))
    assert len(talk.echo) == 0


def test_a_repeated_answer_is_kept_once(talk: Talk, unusual: list[int]) -> None:
    talk.answer(unusual)
    talk.answer(unusual)
    assert len(talk.echo) == 1


def test_later_tokens_replace_earlier_ones(talk: Talk, unusual: list[int]) -> None:
    (no,) = talk.tokenizer.encode("No")
    talk.answer([no, *unusual[2:]])
    ledger = talk.answer(unusual)
    assert talk.echoed(unusual)[: len(ledger)] == ledger


def test_the_oldest_record_makes_room(
    tokenizer: Tokenizer, template_of: TemplateOf, unusual: list[int]
) -> None:
    talk = Talk(tokenizer, template_of("reference"), max_tokens=len(unusual) + 5)
    talk.answer(unusual)
    ledger = talk.answer(unusual, _OTHER_USER)
    assert len(talk.echo) == 1
    assert talk.echoed(unusual, _OTHER_USER)[: len(ledger)] == ledger


def test_an_answer_beyond_the_bound_is_not_kept(
    tokenizer: Tokenizer, template_of: TemplateOf, unusual: list[int]
) -> None:
    talk = Talk(tokenizer, template_of("reference"), max_tokens=len(unusual) - 1)
    talk.answer(unusual)
    assert len(talk.echo) == 0


@given(ids=st.lists(st.integers(0, 2038), max_size=12))
def test_any_answer_comes_back_in_its_own_tokens(
    tokenizer: Tokenizer, template_of: TemplateOf, ids: list[int]
) -> None:
    text = tokenizer.decode(ids)
    # Generated as ordinary tokens, the text of an added token cannot be recognized again.
    assume(not any(token in text for token in tokenizer.added_tokens))
    talk = Talk(tokenizer, template_of("reference"), max_tokens=10_000)
    ledger = talk.answer(ids)
    assert talk.echoed(ids)[: len(ledger)] == ledger
