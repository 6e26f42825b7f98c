"""Facts that a user or project notes state, and that a later question recalls.

Owns the sentences of a fact: statement, confirmation and question. ``fact_exchanges`` builds
messages from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from kvreg_service.reference_model.grammar import wordlists as words
from kvreg_service.reference_model.grammar.wordlists import capitalise, title_case

FactMaker = Callable[[Random], "Fact"]


@dataclass(frozen=True)
class Fact:
    """One fact in all forms that occur in a chat.

    ``key`` identifies the subject: two facts with one key contradict each other unless their
    ``value`` is equal. ``statement`` is the user's form and ``confirmation`` the assistant's; both
    start in lower case and have no mark at the end, like ``question``. ``topic`` is the fact as a
    title, ``unknown`` what the assistant does not know if it was not stated.
    """

    key: str
    statement: str
    confirmation: str
    question: str
    value: str
    topic: str
    unknown: str


def _attribute(thing: str, value: str, topic: str) -> Fact:
    return Fact(
        key=thing,
        statement=f"my {thing} is {value}",
        confirmation=f"your {thing} is {value}",
        question=f"what is my {thing}",
        value=value,
        topic=topic,
        unknown=f"your {thing}",
    )


def _residence(rng: Random) -> Fact:
    kin, city = rng.choice(words.KIN), rng.choice(words.CITIES)
    if rng.random() < 0.3:
        return Fact(
            key="live",
            statement=f"I live in {city}",
            confirmation=f"you live in {city}",
            question="where do I live",
            value=city,
            topic=f"Living in {city}",
            unknown="where you live",
        )
    return Fact(
        key=f"lives {kin}",
        statement=f"my {kin} lives in {city}",
        confirmation=f"your {kin} lives in {city}",
        question=f"where does my {kin} live",
        value=city,
        topic=f"{capitalise(kin)} in {city}",
        unknown=f"where your {kin} lives",
    )


def personal_fact(rng: Random) -> Fact:
    """A fact about the user: a code, a name, a favourite, a place."""
    match rng.randrange(10):
        case 0 | 1:
            thing, value = rng.choice(words.FOUR_DIGIT_CODES), words.draw_digits(rng, 4)
            topic = f"{capitalise(thing.split()[0])} {capitalise(thing.split()[-1])}"
            return _attribute(thing, value, topic)
        case 2:
            thing = rng.choice(words.NUMBERS)
            return _attribute(thing, words.draw_digits(rng, rng.randint(2, 4)), title_case(thing))
        case 3:
            thing = rng.choice(words.SECRET_WORDS)
            return _attribute(thing, words.draw_word(rng), title_case(thing))
        case 4:
            kin, name = rng.choice(words.KIN), words.draw_name(rng)
            return Fact(
                key=kin,
                statement=f"my {kin} is called {name}",
                confirmation=f"your {kin} is called {name}",
                question=f"what is my {kin} called",
                value=name,
                topic=f"{capitalise(kin)} Called {name}",
                unknown=f"what your {kin} is called",
            )
        case 5:
            pet, name = rng.choice(words.PETS), words.draw_name(rng)
            return Fact(
                key=f"pet {pet}",
                statement=f"my {pet} is named {name}",
                confirmation=f"your {pet} is named {name}",
                question=f"what is the name of my {pet}",
                value=name,
                topic=f"{capitalise(pet)} Named {name}",
                unknown=f"the name of your {pet}",
            )
        case 6:
            thing = rng.choice(list(words.FAVOURITES))
            value = rng.choice(words.FAVOURITES[thing])
            return Fact(
                key=f"fav {thing}",
                statement=f"my favourite {thing} is {value}",
                confirmation=f"your favourite {thing} is {value}",
                question=f"what is my favourite {thing}",
                value=value,
                topic=f"Favourite {capitalise(thing)}",
                unknown=f"your favourite {thing}",
            )
        case 7:
            return _residence(rng)
        case 8:
            item, _, place = (
                rng.choice(words.ITEMS),
                # Unused; it keeps the random stream of the bundled checkpoint's data.
                rng.choice(words.COLOURS),
                rng.choice(words.PLACES),
            )
            return Fact(
                key=f"where {item}",
                statement=f"my {item} is in the {place}",
                confirmation=f"your {item} is in the {place}",
                question=f"where is my {item}",
                value=place,
                topic=f"{capitalise(item)} in the {capitalise(place)}",
                unknown=f"where your {item} is",
            )
        case _:
            item, colour = rng.choice(words.ITEMS), rng.choice(words.COLOURS)
            return Fact(
                key=f"colour {item}",
                statement=f"my {item} is {colour}",
                confirmation=f"your {item} is {colour}",
                question=f"what colour is my {item}",
                value=colour,
                topic=f"{capitalise(colour)} {capitalise(item)}",
                unknown=f"the colour of your {item}",
            )


def _shared(key: str, statement: str, question: str, value: str, topic: str, unknown: str) -> Fact:
    return Fact(key, statement, statement, question, value, topic, unknown)


def neutral_fact(rng: Random) -> Fact:
    """A fact with equal statement and confirmation: an event, a service, a server, a project."""
    match rng.randrange(8):
        case 0 | 1:
            event, day = rng.choice(words.EVENTS), rng.choice(words.DAYS)
            return _shared(
                f"day {event}",
                f"the {event} is on {day}",
                f"on which day is the {event}",
                day,
                f"{capitalise(event)} on {day}",
                f"the day of the {event}",
            )
        case 2:
            event = rng.choice(words.EVENTS)
            time = f"{rng.randint(7, 20)}:{rng.choice(['00', '15', '30', '45'])}"
            return _shared(
                f"time {event}",
                f"the {event} starts at {time}",
                f"at what time does the {event} start",
                time,
                f"{capitalise(event)} Start Time",
                f"when the {event} starts",
            )
        case 3:
            service, name = rng.choice(words.SERVICES), words.draw_name(rng)
            return _shared(
                f"owner {service}",
                f"the {service} service is owned by {name}",
                f"who owns the {service} service",
                name,
                f"Owner of the {capitalise(service)} Service",
                f"who owns the {service} service",
            )
        case 4:
            server, port = rng.choice(words.SERVERS), words.draw_digits(rng, 4)
            return _shared(
                f"port {server}",
                f"the {server} server listens on port {port}",
                f"which port does the {server} server use",
                port,
                f"{capitalise(server)} Server Port",
                f"the port of the {server} server",
            )
        case 5:
            service = rng.choice(words.SERVICES)
            version = f"{rng.randint(1, 9)}.{rng.randint(0, 9)}.{rng.randint(0, 9)}"
            return _shared(
                f"version {service}",
                f"the {service} service runs version {version}",
                f"which version does the {service} service run",
                version,
                f"{capitalise(service)} Service Version",
                f"the version of the {service} service",
            )
        case 6:
            server, city = rng.choice(words.SERVERS), rng.choice(words.CITIES)
            return _shared(
                f"loc {server}",
                f"the {server} server is located in {city}",
                f"where is the {server} server located",
                city,
                f"{capitalise(server)} Server in {city}",
                f"where the {server} server is located",
            )
        case _:
            project = rng.choice(words.PROJECTS)
            euros = words.draw_digits(rng, rng.randint(2, 4))
            return _shared(
                f"budget {project}",
                f"the budget of project {project} is {euros} euros",
                f"what is the budget of project {project}",
                euros,
                f"Project {project} Budget",
                f"the budget of project {project}",
            )


def mixed_fact(personal_share: float) -> FactMaker:
    """Return a maker that draws a personal fact with this probability, else a neutral one."""

    def make(rng: Random) -> Fact:
        return personal_fact(rng) if rng.random() < personal_share else neutral_fact(rng)

    return make


def draw_facts(
    rng: Random, num_facts: int, make: FactMaker, used_keys: Iterable[str] = ()
) -> list[Fact]:
    """``num_facts`` facts that contradict neither each other nor those of ``used_keys``."""
    facts: list[Fact] = []
    seen = set(used_keys)
    while len(facts) < num_facts:
        fact = make(rng)
        if fact.key not in seen:
            seen.add(fact.key)
            facts.append(fact)
    return facts
