"""One client: keeps a few conversations, and carries out operations on them one after the other."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.soak import conversation
from tests.soak.conversation import Conversation, Message
from tests.soak.door import Ask, Door, Reply
from tests.soak.judge import Judge
from tests.soak.operations import ABORTS, LIMITED, TENANTS, Kind, Operation, Options

from kvreg_service.core.errors import NotFound, PinRefused, SessionBusy
from kvreg_service.core.quota import Quota
from kvreg_service.engine.interface.protocol import EngineProtocol

MOST_CONVERSATIONS = 2
MOST_TURNS = 9


class Client:
    """Talks through a door; as an operator it reaches for the engine itself."""

    def __init__(self, door: Door, engine: EngineProtocol, judge: Judge) -> None:
        self._door = door
        self._engine = engine
        self._judge = judge
        self._conversations: list[Conversation] = []

    async def carry_out(self, operation: Operation) -> None:
        """Do one thing, and hand what came of it to the judge."""
        match operation.kind:
            case Kind.NEW:
                await self._begin(operation)
            case Kind.SIDE:
                tenant = TENANTS[operation.pick % len(TENANTS)]
                await self._ask(operation, tenant, conversation.side_request(operation.pick))
            case Kind.CROWD:
                await self._crowd(operation)
            case Kind.SNAPSHOT:
                self._judge.look(operation.number, self._engine.snapshot())
                for tenant in TENANTS:
                    self._judge.look(operation.number, self._engine.snapshot(tenant))
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
        # Cut off or drawn, the first turn would be another one.
        options = replace(operation.options, max_tokens=32, stop=(), seed=None)
        if await self._say(operation, session, messages, options):
            session.is_planted = True

    async def _talk(self, operation: Operation) -> None:
        if not self._conversations:
            return
        # Mostly the newest goes on; now and then one returns after a long time.
        session = self._conversations[0 if operation.pick % 5 == 0 else -1]
        if not session.is_planted or session.num_turns >= MOST_TURNS:
            # Its first turn has failed, or it is over: another one begins.
            self._conversations.remove(session)
            await self._begin(operation)
            return
        text = conversation.something(operation.pick)
        match operation.kind:
            case Kind.TURN:
                await self._say(operation, session, session.with_user(text))
            case Kind.RECALL:
                await self._recall(operation, session)
            case Kind.POSTFIX_SIDE:
                messages = session.with_user(f"{conversation.TITLE} {text}")
                await self._ask(operation, session.tenant, messages, session)
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
                ask = self._as_ask(operation, session.tenant, session.with_user(text), session)
                outcome = await self._door.abort(ask, ABORTS[operation.kind])
                self._judge.left(operation.number, outcome)

    async def _say(
        self,
        operation: Operation,
        session: Conversation,
        messages: list[Message],
        options: Options | None = None,
    ) -> Reply | None:
        """Ask, and go on from the answer if there is one."""
        reply = await self._ask(operation, session.tenant, messages, session, options)
        if reply is not None:
            session.go_on(messages, reply.text)
        return reply

    async def _recall(self, operation: Operation, session: Conversation) -> None:
        messages = session.with_user(conversation.RECALL)
        reply = await self._say(operation, session, messages)
        if reply is not None:
            ask = self._as_ask(operation, session.tenant, messages, session)
            self._judge.recalled(operation.number, ask, reply, session.canary)

    async def _continue(self, operation: Operation, session: Conversation) -> None:
        ask = replace(
            self._as_ask(operation, session.tenant, session.messages, session),
            is_continuation=True,
        )
        self._judge.take(operation.number, ask, await self._door.ask(ask))

    async def _count(
        self, operation: Operation, session: Conversation, messages: list[Message]
    ) -> None:
        ask = self._as_ask(operation, session.tenant, messages, session)
        if await self._door.count_tokens(ask) <= 0:
            self._judge.find("a prompt of no tokens", operation.number)

    async def _crowd(self, operation: Operation) -> None:
        messages = conversation.side_request(operation.pick)
        asks = [
            replace(
                self._as_ask(operation, TENANTS[0], messages), name=f"{operation.number}/{index}"
            )
            for index in range(3)
        ]
        outcomes = await asyncio.gather(*(self._door.ask(ask) for ask in asks))
        for ask, outcome in zip(asks, outcomes, strict=True):
            self._judge.take(operation.number, ask, outcome)

    def _administer(self, operation: Operation) -> None:
        now = self._engine.snapshot()
        kept = [one.sequence_id for one in now.entries if one.sequence_id is not None]
        kept += [one.sequence_id for one in now.lanes if one.sequence_id is not None]
        if not kept:
            return
        sequence_id = kept[operation.pick % len(kept)]
        # What was kept a moment ago may run or be gone.
        try:
            match operation.kind:
                case Kind.PIN:
                    self._engine.pin(sequence_id, operation.seconds)
                case Kind.UNPIN:
                    self._engine.unpin(sequence_id)
                case _:
                    self._engine.drop_sequence(sequence_id)
        except (NotFound, SessionBusy, PinRefused) as error:
            self._judge.refusals[error.code] += 1

    async def _ask(
        self,
        operation: Operation,
        tenant: str,
        messages: list[Message],
        session: Conversation | None = None,
        options: Options | None = None,
    ) -> Reply | None:
        ask = self._as_ask(operation, tenant, messages, session, options)
        return self._judge.take(operation.number, ask, await self._door.ask(ask))

    def _as_ask(
        self,
        operation: Operation,
        tenant: str,
        messages: list[Message],
        session: Conversation | None = None,
        options: Options | None = None,
    ) -> Ask:
        return Ask(
            name=str(operation.number),
            tenant=tenant,
            messages=messages,
            options=options or operation.options,
            tools=session.tools if session else None,
            is_marked=session.is_marked if session else False,
        )


def _quotas(pick: int) -> dict[str, Quota]:
    """Nobody's, or one that leaves others most of what there is."""
    if pick % 3 == 0:
        return {}
    return {LIMITED: Quota(entries=pick % 3, pages=16 + pick % 8, anchors=pick % 2)}
