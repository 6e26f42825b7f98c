"""An answer in unusual tokens comes back in the same tokens, and only where it was said."""

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
    """A prompt builder with its echo index, and what the two say about one exchange."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, max_tokens: int) -> None:
        self.tokenizer = tokenizer
        self.echo = EchoIndex(tokenizer, max_tokens=max_tokens)
        self._builder = PromptBuilder(tokenizer, template, self.echo)

    def prompt(self, *messages: dict[str, str], tenant: str = "default") -> list[int]:
        conversation = Conversation(messages, preserve_thinking=True)
        return list(self._builder.build(conversation, tenant).token_ids)

    def answer(self, ids: list[int], user: dict[str, str] = _USER) -> list[int]:
        """Let the model answer ``ids`` to ``user``; the prompt and the answer come back."""
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
def spelled(tokenizer: Tokenizer) -> list[int]:
    """A sentence spelled letter by letter, as no tokenizer would."""
    return [token_id for letter in "Noted: Monday." for token_id in tokenizer.encode(letter)]


def test_an_unusual_answer_is_spliced(talk: Talk, spelled: list[int]) -> None:
    ledger = talk.answer(spelled)
    assert talk.echoed(spelled)[: len(ledger)] == ledger


def test_without_a_record_the_tokenizer_chooses(talk: Talk, spelled: list[int]) -> None:
    ledger = talk.prompt(_USER) + spelled
    assert talk.echoed(spelled)[: len(ledger)] != ledger


def test_an_end_token_ends_the_answer(talk: Talk, spelled: list[int]) -> None:
    (end,) = talk.tokenizer.encode("<|im_end|>")
    ledger = talk.answer([*spelled, end])
    assert talk.echoed(spelled)[: len(ledger)] == ledger


def test_the_splice_does_not_change_the_text(talk: Talk, spelled: list[int]) -> None:
    before = talk.tokenizer.decode(talk.echoed(spelled))
    talk.answer(spelled)
    assert talk.tokenizer.decode(talk.echoed(spelled)) == before


def test_another_conversation_keeps_the_choice_of_the_tokenizer(
    talk: Talk, spelled: list[int]
) -> None:
    before = talk.echoed(spelled, _OTHER_USER)
    talk.answer(spelled)
    assert talk.echoed(spelled, _OTHER_USER) == before


def test_two_conversations_keep_their_own_tokens(talk: Talk, spelled: list[int]) -> None:
    (no,) = talk.tokenizer.encode("No")
    other = [no, *spelled[2:]]
    first, second = talk.answer(spelled), talk.answer(other, _OTHER_USER)
    assert talk.echoed(spelled)[: len(first)] == first
    assert talk.echoed(other, _OTHER_USER)[: len(second)] == second


def test_another_tenant_keeps_the_choice_of_the_tokenizer(talk: Talk, spelled: list[int]) -> None:
    before = talk.echoed(spelled, tenant="other")
    talk.answer(spelled)
    assert talk.echoed(spelled, tenant="other") == before


def test_a_tenant_gets_its_own_tokens_back(talk: Talk, spelled: list[int]) -> None:
    (no,) = talk.tokenizer.encode("No")
    other = [no, *spelled[2:]]
    ledger = talk.answer(spelled)
    talk.echo.record(talk.prompt(_USER), other, "other")
    assert talk.echoed(spelled)[: len(ledger)] == ledger
    assert talk.echoed(other, tenant="other")[: len(ledger) - 1] == talk.prompt(_USER) + other


def test_many_answers_of_a_tenant_leave_those_of_another(
    tokenizer: Tokenizer, template_of: TemplateOf, spelled: list[int]
) -> None:
    talk = Talk(tokenizer, template_of("reference"), max_tokens=3 * len(spelled))
    ledger = talk.answer(spelled)
    for number in range(10):
        talk.echo.record(talk.prompt({"role": "user", "content": f"{number}?"}), spelled, "other")
    assert talk.echoed(spelled)[: len(ledger)] == ledger


def test_a_later_turn_still_gets_every_splice(talk: Talk, spelled: list[int]) -> None:
    answer = {"role": "assistant", "content": talk.tokenizer.decode(spelled)}
    talk.answer(spelled)
    prompt = talk.prompt(_USER, answer, _OTHER_USER)
    talk.echo.record(prompt, spelled)
    following = talk.prompt(_USER, answer, _OTHER_USER, answer)
    assert following[: len(prompt) + len(spelled)] == prompt + spelled


def test_the_choice_of_the_tokenizer_is_not_kept(talk: Talk) -> None:
    talk.answer(talk.tokenizer.encode("Noted: Monday.<|im_end|>"))
    assert len(talk.echo) == 0


def test_a_repeated_answer_is_kept_once(talk: Talk, spelled: list[int]) -> None:
    talk.answer(spelled)
    talk.answer(spelled)
    assert len(talk.echo) == 1


def test_a_later_spelling_replaces_an_earlier_one(talk: Talk, spelled: list[int]) -> None:
    (no,) = talk.tokenizer.encode("No")
    talk.answer([no, *spelled[2:]])
    ledger = talk.answer(spelled)
    assert talk.echoed(spelled)[: len(ledger)] == ledger


def test_the_oldest_record_makes_room(
    tokenizer: Tokenizer, template_of: TemplateOf, spelled: list[int]
) -> None:
    talk = Talk(tokenizer, template_of("reference"), max_tokens=len(spelled) + 5)
    talk.answer(spelled)
    ledger = talk.answer(spelled, _OTHER_USER)
    assert len(talk.echo) == 1
    assert talk.echoed(spelled, _OTHER_USER)[: len(ledger)] == ledger


def test_an_answer_beyond_the_bound_is_not_kept(
    tokenizer: Tokenizer, template_of: TemplateOf, spelled: list[int]
) -> None:
    talk = Talk(tokenizer, template_of("reference"), max_tokens=len(spelled) - 1)
    talk.answer(spelled)
    assert len(talk.echo) == 0


@given(ids=st.lists(st.integers(0, 2038), max_size=12))
def test_any_answer_comes_back_in_its_own_tokens(
    tokenizer: Tokenizer, template_of: TemplateOf, ids: list[int]
) -> None:
    text = tokenizer.decode(ids)
    # Spelled out in ordinary tokens, an added token cannot come back as what it was.
    assume(not any(token in text for token in tokenizer.added_tokens))
    talk = Talk(tokenizer, template_of("reference"), max_tokens=10_000)
    ledger = talk.answer(ids)
    assert talk.echoed(ids)[: len(ledger)] == ledger
