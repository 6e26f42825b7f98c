"""One client, which keeps a few conversations and runs operations on them sequentially."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.canary import RECALL
from tests.soak import conversation
from tests.soak.conversation import Conversation, Message
from tests.soak.door import Door, Reply, RequestSpec
from tests.soak.judge import Judge
from tests.soak.operations import ABORTS, LIMITED, TENANTS, Kind, Operation, Options

from kvreg_service.core.errors import NotFound, PinRefused, SessionBusy
from kvreg_service.core.states.quota import Quota
from kvreg_service.engine.interface.protocol import EngineProtocol

MOST_CONVERSATIONS = 2
MOST_TURNS = 9


class Client:
    """Sends requests through a door; calls the engine directly for administration."""

    def __init__(self, door: Door, engine: EngineProtocol, judge: Judge) -> None:
        self._door = door
        self._engine = engine
        self._judge = judge
        self._conversations: list[Conversation] = []

    async def carry_out(self, operation: Operation) -> None:
        """Run one operation and pass its outcome to the judge."""
        match operation.kind:
            case Kind.NEW:
                await self._begin(operation)
            case Kind.SIDE:
                tenant = TENANTS[operation.pick % len(TENANTS)]
                await self._send(operation, tenant, conversation.side_request(operation.pick))
            case Kind.CROWD:
                await self._crowd(operation)
            case Kind.SNAPSHOT:
                self._judge.check_snapshot(operation.number, self._engine.snapshot())
                for tenant in TENANTS:
                    self._judge.check_snapshot(operation.number, self._engine.snapshot(tenant))
            case Kind.PIN | Kind.UNPIN | Kind.DROP:
                self._administer(operation)
            case Kind.QUOTA:
                self._judge.quotas = _quotas(operation.pick)
                self._engine.set_quotas(self._judge.quotas)
            case _:
                await self._talk(operation)

    async def _begin(self, operation: Operation) -> None:
        if len(self._conversations) == MOST_CONVERSATIONS:
            self._conversations.pop(0)
        tenant = TENANTS[operation.pick % len(TENANTS)]
        has_tools = operation.pick // 2 % 4 == 0
        session = Conversation(operation.number, tenant, has_tools)
        self._judge.canaries.add(session.canary)
        self._conversations.append(session)
        await self._plant(operation, session)

    async def _plant(self, operation: Operation, session: Conversation) -> None:
        messages = session.with_user(session.opening)
        # Greedy and without stop strings, so that the answer acknowledges the canary.
        options = replace(operation.options, max_tokens=32, stop=(), seed=None)
        if await self._say(operation, session, messages, options):
            session.is_planted = True

    async def _talk(self, operation: Operation) -> None:
        if not self._conversations:
            return
        # Mostly the newest conversation continues; one in five times an older one returns.
        session = self._conversations[0 if operation.pick % 5 == 0 else -1]
        if not session.is_planted or session.num_turns >= MOST_TURNS:
            # The first turn failed, or the conversation is complete: begin another one.
            self._conversations.remove(session)
            await self._begin(operation)
            return
        text = conversation.user_text(operation.pick)
        match operation.kind:
            case Kind.TURN:
                await self._say(operation, session, session.with_user(text))
            case Kind.RECALL:
                await self._recall(operation, session)
            case Kind.POSTFIX_SIDE:
                messages = session.with_user(f"{conversation.TITLE} {text}")
                await self._send(operation, session.tenant, messages, session)
            case Kind.EDIT if session.num_turns > 1:
                messages = [*session.without_last_turn(), {"role": "user", "content": text}]
                await self._say(operation, session, messages)
            case Kind.EDIT | Kind.REGENERATE:
                await self._say(operation, session, session.messages[:-1])
            case Kind.CONTINUE:
                await self._continue(operation, session)
            case Kind.TOOL_RESULT:
                messages = session.with_tool_result(operation.pick)
                await self._say(operation, session, messages)
            case Kind.COUNT_TOKENS:
                await self._count(operation, session, session.with_user(text))
            case _:
                spec = self._build_spec(operation, session.tenant, session.with_user(text), session)
                outcome = await self._door.abort(spec, ABORTS[operation.kind])
                self._judge.count_disconnect(operation.number, outcome)

    async def _say(
        self,
        operation: Operation,
        session: Conversation,
        messages: list[Message],
        options: Options | None = None,
    ) -> Reply | None:
        """Send a turn and append its answer, if any, to the conversation."""
        reply = await self._send(operation, session.tenant, messages, session, options)
        if reply is not None:
            session.go_on(messages, reply.text)
        return reply

    async def _recall(self, operation: Operation, session: Conversation) -> None:
        messages = session.with_user(RECALL)
        reply = await self._say(operation, session, messages)
        if reply is not None:
            spec = self._build_spec(operation, session.tenant, messages, session)
            self._judge.check_recall(operation.number, spec, reply, session.canary)

    async def _continue(self, operation: Operation, session: Conversation) -> None:
        spec = replace(
            self._build_spec(operation, session.tenant, session.messages, session),
            is_continuation=True,
        )
        self._judge.check_outcome(operation.number, spec, await self._door.send(spec))

    async def _count(
        self, operation: Operation, session: Conversation, messages: list[Message]
    ) -> None:
        spec = self._build_spec(operation, session.tenant, messages, session)
        if await self._door.count_tokens(spec) <= 0:
            self._judge.find("count_tokens returned 0", operation.number)

    async def _crowd(self, operation: Operation) -> None:
        messages = conversation.side_request(operation.pick)
        specs = [
            replace(
                self._build_spec(operation, TENANTS[0], messages),
                name=f"{operation.number}/{index}",
            )
            for index in range(3)
        ]
        outcomes = await asyncio.gather(*(self._door.send(spec) for spec in specs))
        for spec, outcome in zip(specs, outcomes, strict=True):
            self._judge.check_outcome(operation.number, spec, outcome)

    def _administer(self, operation: Operation) -> None:
        kept = [one.session_id for one in self._engine.snapshot().sessions if one.states]
        if not kept:
            return
        session_id = kept[operation.pick % len(kept)]
        # A session of the snapshot may by now run or be evicted.
        try:
            match operation.kind:
                case Kind.PIN:
                    self._engine.pin(session_id, operation.seconds)
                case Kind.UNPIN:
                    self._engine.unpin(session_id)
                case _:
                    self._engine.drop_session(session_id)
        except (NotFound, SessionBusy, PinRefused) as error:
            self._judge.refusals[error.code] += 1

    async def _send(
        self,
        operation: Operation,
        tenant: str,
        messages: list[Message],
        session: Conversation | None = None,
        options: Options | None = None,
    ) -> Reply | None:
        spec = self._build_spec(operation, tenant, messages, session, options)
        return self._judge.check_outcome(operation.number, spec, await self._door.send(spec))

    def _build_spec(
        self,
        operation: Operation,
        tenant: str,
        messages: list[Message],
        session: Conversation | None = None,
        options: Options | None = None,
    ) -> RequestSpec:
        return RequestSpec(
            name=str(operation.number),
            tenant=tenant,
            messages=messages,
            options=options or operation.options,
            tools=session.tools if session else None,
            is_marked=session.is_marked if session else False,
        )


def _quotas(pick: int) -> dict[str, Quota]:
    """Return no quotas, or one for ``LIMITED`` that leaves most of the memory to others."""
    if pick % 3 == 0:
        return {}
    return {LIMITED: Quota(entries=pick % 3, pages=16 + pick % 8, anchors=pick % 2)}
