"""The seeded generator of whole chats: sessions, side requests, drills and quizzes, by stage.

Owns the order and the frequencies of exchanges. The scores of the bundled checkpoint are those of
this grammar: a change in the order of draws changes every chat of every seed.
"""

from __future__ import annotations

from enum import IntEnum
from random import Random

from kvreg_service.reference_model.grammar import wordlists as words
from kvreg_service.reference_model.grammar.fact_exchanges import (
    ask_from_notes,
    ask_from_turns,
    ask_unknown,
    bullets,
    tell,
    try_correct,
    try_list_all,
)
from kvreg_service.reference_model.grammar.facts import (
    Fact,
    draw_facts,
    mixed_fact,
    personal_fact,
)
from kvreg_service.reference_model.grammar.messages import Exchange, Message, answer, system, user
from kvreg_service.reference_model.grammar.notes import SYSTEM_PROMPTS, draw_notes
from kvreg_service.reference_model.grammar.side_requests import (
    review_action,
    summarise,
    write_title,
)
from kvreg_service.reference_model.grammar.task_exchanges import (
    compute,
    repeat,
    repeat_words,
    small_talk,
    story,
)
from kvreg_training.data.chat import Chat
from kvreg_training.data.chinese import chinese_messages


class Stage(IntEnum):
    """The composition of a data set. The recipe trains on DRILLS, then on QUIZZES."""

    SHORT = 0
    """Chats of up to about 350 tokens."""
    MIXED = 1
    """Chats of up to about 1500 tokens. The held-out chats are of this stage."""
    DRILLS = 2
    """Half SHORT, half dense copying drills, without which the model does not learn to copy."""
    QUIZZES = 3
    """MIXED with 30 % quizzes, which have many short tasks per token."""


_SESSION_FACT = mixed_fact(personal_share=0.75)
_DRILL_FACT = mixed_fact(personal_share=0.6)
_MAX_TOLD_FACTS = 12


def make_chat(rng: Random, stage: Stage) -> Chat:
    """Generate one chat of ``stage``. The same state of ``rng`` gives the same chat."""
    if stage is Stage.DRILLS and rng.random() < 0.5:
        return Chat("drill", tuple(_drill_messages(rng)))
    if stage is Stage.QUIZZES and rng.random() < 0.3:
        messages = _quiz_messages(rng)
        return Chat("quiz", tuple(messages), is_thinking=rng.random() < 0.08)
    draw = rng.random()
    if draw < 0.25:
        chat = Chat("side", tuple(_side_messages(rng)))
    elif draw < 0.30:
        chat = Chat("zh", tuple(chinese_messages(rng)))
    elif stage in (Stage.SHORT, Stage.DRILLS):
        notes_tokens = rng.choice([0, 0, 0, 60, 100, 150])
        chat = make_session(rng, notes_tokens=notes_tokens, num_turns=rng.randint(2, 5))
    else:
        if rng.random() < 0.6:
            notes_tokens = rng.choice([0, 0, 0, 80, 150, 250])
        else:
            notes_tokens = rng.randint(300, 1000)
        chat = make_session(rng, notes_tokens=notes_tokens, num_turns=rng.randint(2, 9))
    return Chat(
        chat.kind,
        chat.messages,
        is_thinking=rng.random() < 0.10,
        preserves_thinking=rng.random() < 0.06,
    )


def make_session(rng: Random, *, notes_tokens: int, num_turns: int) -> Chat:
    """A conversation in which facts are stated and recalled, among other things.

    ``notes_tokens`` is the length of the project notes in the system prompt; 0 means none.
    """
    messages: list[Message] = []
    noted: list[Fact] = []
    if notes_tokens:
        text, noted = draw_notes(rng, notes_tokens)
        if rng.random() < 0.3:
            text = f"{rng.choice(SYSTEM_PROMPTS)}\n\n{text}"
        messages.append(system(text))
    elif rng.random() < 0.8:
        messages.append(system(rng.choice(SYSTEM_PROMPTS)))
    told: list[Fact] = []
    for _ in range(num_turns):
        messages += _session_exchange(rng, told, noted)
    return Chat("session", tuple(messages))


def _session_exchange(rng: Random, told: list[Fact], noted: list[Fact]) -> Exchange:
    """One turn of a session. Updates ``told`` if the user states or corrects a fact."""
    draw = rng.random()
    used_keys = {fact.key for fact in told} | {fact.key for fact in noted}
    if (draw < 0.30 or not (told or noted)) and len(told) < _MAX_TOLD_FACTS:
        facts = draw_facts(rng, rng.choice([1, 1, 2, 2, 3]), _SESSION_FACT, used_keys)
        told += facts
        return tell(rng, facts)
    if draw < 0.67:
        if noted and (not told or rng.random() < 0.5):
            return ask_from_notes(rng, rng.choice(noted))
        return ask_from_turns(rng, rng.choice(told))
    if draw < 0.79:
        return compute(rng)
    if draw < 0.86:
        return repeat(rng)
    if draw < 0.90:
        listed = try_list_all(rng, told) if len(told) > 1 else None
        return listed or small_talk(rng)
    if draw < 0.94:
        return small_talk(rng)
    if draw < 0.97 and told:
        index = rng.randrange(len(told))
        correction = try_correct(rng, told[index], _SESSION_FACT)
        if correction is None:
            return story(rng)
        exchange, told[index] = correction
        return exchange
    if draw < 0.985:
        (fact,) = draw_facts(rng, 1, personal_fact, used_keys)
        return ask_unknown(rng, fact)
    return story(rng)


def _side_messages(rng: Random) -> list[Message]:
    messages = [] if rng.random() < 0.5 else [system(rng.choice(SYSTEM_PROMPTS))]
    (make,) = rng.choices(
        [write_title, review_action, summarise, story, compute, repeat],
        weights=[3, 3, 3, 1, 1.5, 1],
    )
    return messages + make(rng)


def _drill_messages(rng: Random) -> list[Message]:
    """A copying drill: random words, digits and facts, repeated or looked up."""
    messages: list[Message] = []
    for _ in range(rng.randint(1, 2)):
        match rng.randrange(4):
            case 0:
                drawn = [_drill_word(rng) for _ in range(rng.randint(5, 24))]
                messages += repeat_words(drawn)
            case 1:
                numbers = [
                    words.draw_digits(rng, rng.randint(1, 5)) for _ in range(rng.randint(4, 14))
                ]
                messages += repeat_words(numbers)
            case _:
                messages += _fact_table(rng)
    return messages


def _drill_word(rng: Random) -> str:
    match rng.choice(["word", "name", "digits", "city", "item"]):
        case "word":
            return words.draw_word(rng)
        case "name":
            return words.draw_name(rng)
        case "digits":
            return words.draw_digits(rng, rng.randint(1, 4))
        case "city":
            return rng.choice(words.CITIES)
        case _:
            return rng.choice(words.ITEMS)


def _fact_table(rng: Random) -> list[Message]:
    """A list of facts to confirm, usually followed by questions in another order."""
    facts = draw_facts(rng, rng.randint(3, 8), _DRILL_FACT)
    messages = [
        user("Please remember these facts:\n" + bullets([fact.statement for fact in facts])),
        answer(
            "I will remember these facts:\n" + bullets([fact.confirmation for fact in facts]),
            "list",
            facts[-1].value,
        ),
    ]
    if rng.random() < 0.7:
        rng.shuffle(facts)
        for fact in facts[:4]:
            messages += ask_from_turns(rng, fact)
    return messages


def _quiz_messages(rng: Random) -> list[Message]:
    """Many short tasks in a row: sums, repetitions and side requests."""
    messages = [system(rng.choice(SYSTEM_PROMPTS))] if rng.random() < 0.7 else []
    for _ in range(rng.randint(3, 7)):
        if rng.random() < 0.75:
            make = compute
        else:
            make = rng.choice([repeat, review_action, write_title, summarise])
        messages += make(rng)
    return messages
