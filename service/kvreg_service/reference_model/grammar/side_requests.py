"""Side requests, which clients send between two turns of a session, in one message each.

Owns titles, permission reviews and summaries.
"""

from __future__ import annotations

from random import Random

from kvreg_service.reference_model.grammar import wordlists as words
from kvreg_service.reference_model.grammar.fact_exchanges import join_clauses
from kvreg_service.reference_model.grammar.facts import draw_facts, neutral_fact, personal_fact
from kvreg_service.reference_model.grammar.messages import Exchange, answer, user
from kvreg_service.reference_model.grammar.notes import FILLER
from kvreg_service.reference_model.grammar.task_exchanges import compute
from kvreg_service.reference_model.grammar.wordlists import capitalise


def write_title(rng: Random) -> Exchange:
    """A title for a quoted conversation."""
    transcript, title = _titled_transcript(rng)
    instruction = rng.choice(
        [
            "Write a title for this conversation:",
            "Write a short title for this conversation:",
            "Write a title of 3 to 6 words for this conversation:",
        ]
    )
    asked = instruction + rng.choice(["\n", " ", "\n\n"]) + transcript
    return [user(asked), answer(title, "title", title, "I need a title of a few words.")]


def _titled_transcript(rng: Random) -> tuple[str, str]:
    kind = rng.randrange(4)
    service, city, name = rng.choice(words.SERVICES), rng.choice(words.CITIES), words.draw_name(rng)
    match kind:
        case 0:
            make = personal_fact if rng.random() < 0.6 else neutral_fact
            fact = make(rng)
            transcript = f"User: {capitalise(fact.statement)}."
            if rng.random() < 0.5:
                transcript += (
                    f"\nAssistant: Noted: {fact.confirmation}. I will remember that for you."
                )
            return transcript, fact.topic
        case 1:
            return rng.choice(
                [
                    (f"User: Can you help me plan a trip to {city}?", f"Planning a Trip to {city}"),
                    (
                        f"User: What should I see in {city} on {rng.choice(words.DAYS)}?",
                        f"Things to See in {city}",
                    ),
                    (
                        f"User: Tell me a short story about {name} in {city}.",
                        f"Story about {name} in {city}",
                    ),
                ]
            )
        case 2:
            title = capitalise(service)
            return rng.choice(
                [
                    (
                        f"User: The {service} service is slow today. Can you find out why?",
                        f"Slow {title} Service",
                    ),
                    (
                        f"User: Please fix the bug in the {service} service.",
                        f"Fixing the {title} Service Bug",
                    ),
                    (
                        f"User: How do I restart the {service} service?",
                        f"Restarting the {title} Service",
                    ),
                    (
                        f"User: Write tests for the {service} service.",
                        f"Tests for the {title} Service",
                    ),
                ]
            )
        case _:
            asked, answered = compute(rng)
            return (
                f"User: {asked.content}\nAssistant: {answered.content}",
                "A Small Calculation",
            )


def review_action(rng: Random) -> Exchange:
    """A permission review of an action, answered in words or as JSON."""
    file = rng.choice(words.WORDS) + rng.choice([".txt", ".log", ".csv", ".json", ".py", ".md"])
    service, server, name = (
        rng.choice(words.SERVICES),
        rng.choice(words.SERVERS),
        words.draw_name(rng),
    )
    read_only = "it only reads data and changes nothing"
    temporary = "it only touches temporary files"
    destructive = "deleting production data cannot be undone"
    secret = "secrets must not be shared"
    action, verdict, reason = rng.choice(
        [
            (f"read the file {file}", "allow", read_only),
            (f"list the files of the {service} folder", "allow", read_only),
            (f"show the status of the {server} server", "allow", read_only),
            (f"search for {file} in the {service} folder", "allow", read_only),
            (f"run the tests of the {service} service", "allow", "running tests is safe"),
            (f"create the file {file} in the temp folder", "allow", temporary),
            (f"delete the file {file} in the temp folder", "allow", temporary),
            (f"delete the file {file} in the production folder", "deny", destructive),
            (f"drop the {service} table of the production database", "deny", destructive),
            (
                f"delete all backups of the {service} service",
                "deny",
                "lost backups cannot be restored",
            ),
            (f"send the {service} password to {name}", "deny", secret),
            (
                f"upload the private keys of the {server} server to a public site",
                "deny",
                secret,
            ),
            (
                f"install a program from an unknown site on the {server} server",
                "deny",
                "unknown programs are not safe",
            ),
            (
                f"turn off the firewall of the {server} server",
                "deny",
                "the server would not be protected",
            ),
            (
                f"push unreviewed changes of {file} to the main branch",
                "deny",
                "changes need a review first",
            ),
            (f"format the code of {file}", "allow", "the change is small and can be undone"),
        ]
    )
    wants_json = rng.random() < 0.3
    asked = rng.choice(
        [
            f"Review this action: {action}. Allow or deny?",
            f"Review this action and answer allow or deny: {action}.",
        ]
    )
    reasoning = f"The action is to {action}. I think {reason}."
    if wants_json:
        answered = f'{{"verdict": "{verdict}", "reason": "{capitalise(reason)}."}}'
        return [
            user(f"{asked} Answer as JSON."),
            answer(answered, "review", f'"{verdict}"', reasoning),
        ]
    answered = f"{capitalise(verdict)}. The action is to {action}, and {reason}."
    return [user(asked), answer(answered, "review", f"{capitalise(verdict)}.", reasoning)]


def summarise(rng: Random) -> Exchange:
    """One sentence with the facts of a text, without its filler."""
    facts = draw_facts(rng, rng.randint(2, 4), neutral_fact)
    sentences = [f"{capitalise(fact.statement)}." for fact in facts]
    for _ in range(rng.randint(0, 2)):
        sentences.insert(rng.randint(0, len(sentences)), rng.choice(FILLER))
    summary = capitalise(join_clauses([fact.confirmation for fact in facts])) + "."
    instruction = rng.choice(
        ["Summarise: ", "Summarise in one sentence: ", "Please summarise this text: "]
    )
    reasoning = "I keep the facts and leave out the rest."
    return [
        user(instruction + " ".join(sentences)),
        answer(summary, "summary", facts[-1].confirmation, reasoning),
    ]
