"""Case 32: tools in another order make another prompt, which misses."""

from __future__ import annotations

import pytest
from tests.cases.profiles import Profile, some_profiles, with_registry
from tests.cases.server import Serve

from kvreg_service.chat.conversation import Conversation
from kvreg_service.chat.echo.echo_index import EchoIndex
from kvreg_service.chat.prompt.builder import PromptBuilder
from kvreg_service.engine.build import LoadedModel

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Looks at the {name} of a server and tells what it has found there.",
            "parameters": {"type": "object", "properties": {"of": {"type": "string"}}},
        },
    }
    for name in ("weather", "disk", "network")
]
PERMUTED = TOOLS[::-1]
OPENING = {"role": "user", "content": "Hello. What can you do?"}


@some_profiles
def test_case_32_permuted_tools_get_the_same_answer_as_without_reuse(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    first = server.ask([OPENING], tools=TOOLS)
    messages = [OPENING, first.echo, {"role": "user", "content": "And what else?"}]
    reply = server.ask(messages, tools=PERMUTED)
    assert reply.text == server.ask(messages, tools=PERMUTED, cache_prompt=False).text


@with_registry
def test_case_32_only_the_original_order_of_tools_hits(serve: Serve, profile: Profile) -> None:
    server = serve(profile)
    first = server.ask([OPENING], tools=TOOLS)
    messages = [OPENING, first.echo, {"role": "user", "content": "And what else?"}]
    assert server.ask(messages, tools=PERMUTED, retain_prefix=False).cached == 0
    assert server.ask(messages, tools=TOOLS).cached > 0


@pytest.mark.parametrize("tools", [TOOLS, PERMUTED], ids=["as declared", "permuted"])
def test_case_32_prompt_keeps_the_order_of_the_tools(
    loaded_model: LoadedModel, tools: list[dict[str, object]]
) -> None:
    tokenizer = loaded_model.tokenizer
    builder = PromptBuilder(tokenizer, loaded_model.template, EchoIndex(tokenizer))
    text = tokenizer.decode(builder.build(Conversation([OPENING], tools=tools)).token_ids)
    names = [str(tool["function"]["name"]) for tool in tools]  # type: ignore[index]
    assert sorted(names, key=lambda name: text.index(f'"name": "{name}"')) == names
