"""User and assistant messages that need no earlier turn: sums, copying, small talk, stories.

Owns one user message and its answer at a time. ``side_requests`` has the side requests;
``kvreg_training.data.generator`` joins exchanges to conversations.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from kvreg_service.reference_model.grammar import wordlists as words
from kvreg_service.reference_model.grammar.messages import Exchange, answer, user


def compute(rng: Random) -> Exchange:
    """A small sum, bare or as a story about things."""
    kind = rng.randrange(4)
    if kind < 2:
        return _bare_sum(rng)
    item, name = rng.choice(words.ITEMS), words.draw_name(rng)
    items = item + ("es" if item.endswith(("sh", "x", "ch")) else "s")
    first, second = rng.randint(2, 10), rng.randint(1, 10)
    if kind == 2:
        total = first + second
        return [
            user(
                f"{name} has {first} {items} and buys {second} more. "
                f"How many {items} does {name} have now?"
            ),
            answer(
                f"{name} had {first} {items} and bought {second} more, "
                f"so {name} now has {total} {items}.",
                "arith",
                str(total),
                f"I compute {first} + {second} = {total}.",
            ),
        ]
    more, less = max(first, second), min(first, second)
    return [
        user(f"{name} has {more} {items} and gives away {less}. How many {items} are left?"),
        answer(
            f"{name} had {more} {items} and gave away {less}, so {more - less} {items} are left.",
            "arith",
            str(more - less),
            f"I compute {more} - {less} = {more - less}.",
        ),
    ]


def _bare_sum(rng: Random) -> Exchange:
    operation = rng.choice(["plus", "minus", "times"])
    highest = 6 if operation == "times" else 10
    first, second = rng.randint(1, highest), rng.randint(1, highest)
    if operation == "minus" and second > first:
        first, second = second, first
    sign, value = {
        "plus": ("+", first + second),
        "minus": ("-", first - second),
        "times": ("*", first * second),
    }[operation]
    in_words, in_signs = f"{first} {operation} {second}", f"{first} {sign} {second}"
    asked, answered = [
        (
            f"What is {in_words}?",
            f"{in_words} is {value}. Do you want me to compute something else?",
        ),
        (f"Can you compute {in_signs}?", f"Sure: {in_signs} = {value}."),
        (f"How much is {in_words}?", f"{in_words} makes {value}. That was an easy one."),
    ][rng.randrange(3)]
    return [
        user(asked),
        answer(answered, "arith", str(value), f"I compute {in_signs} = {value}."),
    ]


def repeat(rng: Random) -> Exchange:
    """Copying: words again, words with commas, a shopping list, or counting."""
    kind = rng.randrange(4)
    drawn = [words.draw_word(rng) for _ in range(rng.randint(3, 7))]
    if kind == 0:
        return repeat_words(drawn, "The user wants the words repeated.")
    if kind == 1:
        listed = ", ".join(drawn)
        return [
            user(f"List these words with commas: {' '.join(drawn)}."),
            answer(
                f"Here is the list: {listed}.",
                "repeat",
                listed,
                "The user wants a list with commas.",
            ),
        ]
    if kind == 2:
        items = [
            f"{rng.randint(2, 9)} {rng.choice(words.COLOURS)} {rng.choice(words.ITEMS)}s"
            for _ in range(rng.randint(2, 4))
        ]
        return [
            user(f"Make a shopping list: {', '.join(items)}."),
            answer(
                "Here is your shopping list:\n" + "\n".join(f"- {item}" for item in items),
                "repeat",
                f"- {items[-1]}",
                "The user wants a shopping list.",
            ),
        ]
    first = rng.randint(1, 20)
    last = first + rng.randint(4, 25)
    numbers = ", ".join(str(number) for number in range(first, last + 1))
    return [
        user(f"Count from {first} to {last}."),
        answer(f"{numbers}.", "count", numbers, f"I count from {first} to {last}."),
    ]


def repeat_words(drawn: list[str], reasoning: str | None = None) -> Exchange:
    """The user asks to repeat exactly these words."""
    text = " ".join(drawn)
    return [
        user(f"Repeat these words: {text}."),
        answer(f"Here are the words again: {text}.", "repeat", text, reasoning),
    ]


def small_talk(rng: Random) -> Exchange:
    """A greeting, a thank you, a question about the assistant."""
    name = words.draw_name(rng)
    # Functions, so that only the chosen exchange draws a phrasing.
    exchanges: list[Callable[[], tuple[str, str, str]]] = [
        lambda: (
            rng.choice(["Hello!", "Hi there.", "Good morning."]),
            "Hello! How can I help you today?",
            "Hello",
        ),
        lambda: (
            rng.choice(["Thanks!", "Thank you very much.", "Great, thanks."]),
            "You are welcome! Is there anything else I can do for you?",
            "welcome",
        ),
        lambda: (
            rng.choice(["Who are you?", "What are you?"]),
            "I am a small assistant. I remember what you tell me and answer short questions.",
            "small assistant",
        ),
        lambda: (
            "What can you do?",
            "I can remember facts, answer questions about them, do small sums, "
            "repeat words and write short texts.",
            "remember facts",
        ),
        lambda: (
            f"My name is {name}. Nice to meet you.",
            f"Nice to meet you, {name}! How can I help you today?",
            name,
        ),
        lambda: (
            rng.choice(["How are you?", "How are you today?"]),
            "I am fine, thank you. What can I do for you?",
            "fine",
        ),
        lambda: (
            rng.choice(["Goodbye.", "Bye for now.", "See you later."]),
            "Goodbye! I hope to talk to you again soon.",
            "Goodbye",
        ),
    ]
    asked, answered, value = rng.choice(exchanges)()
    return [user(asked), answer(answered, "small", value)]


def story(rng: Random) -> Exchange:
    """Three sentences about a person; the only answer that is not a function of the chat."""
    name, city = words.draw_name(rng), rng.choice(words.CITIES)
    item, colour = rng.choice(words.ITEMS), rng.choice(words.COLOURS)
    place, animal, day = (
        rng.choice(words.PLACES),
        rng.choice(words.ANIMALS),
        rng.choice(words.DAYS),
    )
    friend = words.draw_name(rng)
    asked = rng.choice(
        [
            f"Tell me a short story about {name} in {city}.",
            f"Write a short story about {name} and a {colour} {item} in {city}.",
        ]
    )
    beginnings = [
        f"{name} lived in {city} and had a {colour} {item}.",
        f"One {day}, {name} walked through {city} and found a {colour} {item}.",
        f"Every {day}, {name} from {city} looked after a {colour} {item}.",
    ]
    middles = [
        f"A friendly {animal} followed {name} home and slept in the {place}.",
        f"A small {animal} came into the {place} and wanted to play.",
        f"Then {friend} came by with a hungry {animal}.",
    ]
    ends = [
        f"In the end {name} gave the {item} to {friend}, and they both smiled.",
        f"{friend} laughed, and they all had {rng.choice(words.DRINKS)} together.",
        f"Since then {name} keeps the {item} in the {place}.",
    ]
    told = " ".join(rng.choice(sentences) for sentences in (beginnings, middles, ends))
    reasoning = f"I write three short sentences about {name}."
    return [user(asked), answer(told, "story", name, reasoning)]
