"""The tree of kept states, with their slots and pages.

States of one identity form a tree: the parent of a state is the longest kept state that is a proper
prefix of it. Any state of the path of a prompt can be resumed, and the deepest one is.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from kvreg_service.core.errors import CurrentSlotDropped, InvariantBroken
from kvreg_service.core.events import Event, Evicted, StateKept
from kvreg_service.core.ids import LaneId, PageId, RequestId, SessionId, SlotId, StateId, pages_for
from kvreg_service.core.labels import EvictionReason, StateKind
from kvreg_service.core.memory.pages import PagePool
from kvreg_service.core.memory.slots import LaneOwner, SlotLayout, SlotOwner, SlotPool, StateOwner
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.states.cost import CostModel
from kvreg_service.core.states.kept_state import KeptState, Session
from kvreg_service.core.states.return_rates import ReturnRates, Visits

_MAX_FREED_BEYOND = 8


class StateStore:
    """All kept states. Effects are immediate in the bookkeeping.

    ``events`` collects events until the scheduler returns them.
    """

    def __init__(self, layout: SlotLayout, num_pages: int, cost: CostModel) -> None:
        self.layout = layout
        self.slots = SlotPool(layout.num_slots)
        self.pages = PagePool(num_pages)
        self.rates = ReturnRates()
        self.cost = cost
        self.events: list[Event] = []
        self._sessions: dict[SessionId, Session] = {}
        self._by_identity: dict[Identity, list[KeptState]] = {}
        self._last_state_id = 0
        self._last_session_id = 0

    # Queries.

    def __iter__(self) -> Iterator[KeptState]:
        """Yield every kept state."""
        for states in self._by_identity.values():
            yield from states

    @property
    def sessions(self) -> list[Session]:
        """Every session that has a kept state or runs, the oldest first."""
        return list(self._sessions.values())

    def find(self, prompt: TokenLedger) -> KeptState | None:
        """Return the deepest state that the prompt can resume; one token is left to compute."""
        found = [
            one
            for one in self._by_identity.get(prompt.identity, ())
            if one.position < len(prompt) and one.visits.prefix.is_prefix_of(prompt)
        ]
        # Digests only shorten the list of candidates.
        for one in sorted(found, key=lambda state: -state.position):
            if prompt.starts_with(one.ledger, one.position):
                return one
        return None

    def find_at(self, ledger: TokenLedger, position: int) -> KeptState | None:
        """Return the state after exactly the first ``position`` tokens of a ledger, if kept."""
        for one in self._by_identity.get(ledger.identity, ()):
            if one.position == position and ledger.starts_with(one.ledger, position):
                return one
        return None

    def find_before(self, ledger: TokenLedger, position: int) -> KeptState | None:
        """Return the deepest state that is a proper prefix of the first ``position`` tokens."""
        deepest: KeptState | None = None
        for one in self._by_identity.get(ledger.identity, ()):
            if (
                one.position < position
                and (deepest is None or one.position > deepest.position)
                and one.visits.prefix.is_prefix_of(ledger)
            ):
                deepest = one
        return deepest

    def path_to(self, ledger: TokenLedger, position: int) -> list[KeptState]:
        """Return the states that are proper prefixes of the first ``position`` tokens."""
        path, state = [], self.find_before(ledger, position)
        while state is not None:
            path.append(state)
            state = state.parent
        return path

    def longest_known(self, prompt: TokenLedger, running: Iterable[TokenLedger] = ()) -> int | None:
        """Return the longest prefix that a kept path shares with a prompt; None without any path.

        ``running`` are further known paths.
        """
        ledgers = {id(one.ledger): one.ledger for one in self._by_identity.get(prompt.identity, ())}
        longest: int | None = None
        for ledger in (*ledgers.values(), *running):
            if ledger.identity != prompt.identity:
                continue
            if longest is None or prompt.agrees_up_to(ledger, longest + 1):
                longest = prompt.common_prefix(ledger)
        return longest

    def saved_seconds(self, ledger: TokenLedger, position: int) -> float:
        """Return the seconds of prefill from the nearest kept state before ``position`` to it."""
        before = self.find_before(ledger, position)
        return self.cost.prefill_seconds(position, before.position if before else 0)

    def own_bytes(self, state: KeptState) -> int:
        """Return the bytes that freeing the state frees: its slot, and pages of its own."""
        return self.cost.held_bytes(1, self.pages.count_own(state.pages))

    def next_expiry_s(self) -> float | None:
        """Return when the next time to live of a session at rest ends, if any does."""
        times = [
            max(one.expires_s, one.pinned_until_s or one.expires_s)
            for one in self._sessions.values()
            if one.expires_s is not None and not one.num_running
        ]
        return min(times, default=None)

    # Sessions.

    def begin_session(self, tenant: str, now_s: float, *, is_shared: bool = False) -> Session:
        """Return a new session without states. It is forgotten unless it runs or gets one."""
        self._last_session_id += 1
        session = Session(
            SessionId(self._last_session_id), tenant, now_s, now_s, is_shared=is_shared
        )
        self._sessions[session.session_id] = session
        return session

    def find_session(self, session_id: SessionId) -> Session | None:
        """Return the session of that id, if it is kept or runs."""
        return self._sessions.get(session_id)

    def forget_if_gone(self, session: Session) -> None:
        """Forget a session that has no state and does not run."""
        if not session.states and not session.num_running:
            self._sessions.pop(session.session_id, None)

    # States.

    def keep(
        self,
        session: Session,
        kind: StateKind,
        ledger: TokenLedger,
        position: int,
        *,
        slot: SlotId,
        pages: Sequence[PageId],
        request_id: RequestId,
        now_s: float,
        is_marked: bool = False,
        boundaries: Container[int] = (),
    ) -> KeptState:
        """Keep the state in ``slot``, which becomes its own, as that after ``position`` tokens.

        ``pages`` are a table that is held and goes at least as far; the part up to the position is
        held for the state. No state may be kept at that position yet. States at ``boundaries`` are
        not followed by it.
        """
        self._last_state_id += 1
        state = KeptState(
            state_id=StateId(self._last_state_id),
            session=session,
            kind=kind,
            position=position,
            ledger=ledger,
            slot=slot,
            pages=tuple(pages[: pages_for(position)]),
            visits=Visits(ledger.prefix_key(position), kind, pace=session.pace),
            created_s=now_s,
            last_used_s=now_s,
            is_marked=is_marked,
            parent=self.find_before(ledger, position),
        )
        self.slots.hand_over(slot, StateOwner(state.state_id))
        self.pages.hold(state.pages)
        siblings = self._by_identity.setdefault(ledger.identity, [])
        for other in siblings:
            if other.parent is state.parent and self._is_within(state, other):
                other.parent = state
        siblings.append(state)
        session.states.append(state)
        if kind.is_boundary:
            self._mark_followed(state, boundaries)
        self.events.append(
            StateKept(state.state_id, session.session_id, request_id, kind, position, is_marked)
        )
        return state

    def free(self, state: KeptState, reason: EvictionReason) -> None:
        """Free a kept state, its slot and the pages that nothing else needs."""
        self._remove(state, reason)
        self.slots.free(state.slot)
        self.pages.release(state.pages)

    def take_over(self, state: KeptState, lane: LaneId) -> None:
        """Give the slot and the page table of a kept state to a lane, which resumes it."""
        self._remove(state, EvictionReason.SLOT_NEEDED)
        self.slots.hand_over(state.slot, LaneOwner(lane))

    def free_session(self, session: Session, reason: EvictionReason) -> None:
        """Free all states of a session."""
        for state in tuple(session.states):
            self.free(state, reason)

    def expire(self, now_s: float) -> None:
        """Remove pins that are over, and free every session at rest whose time to live is over.

        A pin outlasts a time to live.
        """
        for session in self.sessions:
            if session.pinned_until_s is not None and not session.is_pinned(now_s):
                session.pinned_until_s = None
            is_over = session.expires_s is not None and now_s >= session.expires_s
            if is_over and not session.num_running and not session.is_pinned(now_s):
                self.free_session(session, EvictionReason.EXPIRED)

    def _remove(self, state: KeptState, reason: EvictionReason) -> None:
        event = self._evicted(state, reason)
        identity = state.ledger.identity
        self._by_identity[identity].remove(state)
        if not self._by_identity[identity]:
            del self._by_identity[identity]
        state.session.states.remove(state)
        for other in self._by_identity.get(identity, ()):
            if other.parent is state:
                other.parent = state.parent
        self.forget_if_gone(state.session)
        self.rates.free(state.visits)
        if state.parent is not None:
            inherited = [*state.parent.freed_beyond, *state.freed_beyond, state.visits]
            state.parent.freed_beyond = [one for one in inherited if one.is_watched][
                -_MAX_FREED_BEYOND:
            ]
        self.events.append(event)

    def _evicted(self, state: KeptState, reason: EvictionReason) -> Evicted:
        return Evicted(
            state_id=state.state_id,
            session_id=state.session.session_id,
            kind=state.kind,
            reason=reason,
            tenant=state.tenant,
            tokens=state.position,
            freed_bytes=self.own_bytes(state),
        )

    def _mark_followed(self, state: KeptState, boundaries: Container[int]) -> None:
        """Note of the states before a new boundary that their conversation went on."""
        for before in self.path_to(state.ledger, state.position):
            if before.visits.can_be_followed and before.position not in boundaries:
                before.visits.is_followed = True

    @staticmethod
    def _is_within(prefix: KeptState, state: KeptState) -> bool:
        return prefix.position < state.position and prefix.visits.prefix.is_prefix_of(state.ledger)

    # Repair and checks.

    def rebuild(self, working: dict[SlotId, LaneId], tables: Iterable[Sequence[PageId]]) -> None:
        """Make slots, pages, sessions and the tree consistent after a failed change.

        Effects: states that are only partly kept are lost.

        Args:
            working: the slots that lanes own, with their lanes.
            tables: the page tables of the lanes.
        """
        in_tree = {state.state_id: state for state in self}
        in_sessions = {
            state.state_id: state for session in self.sessions for state in session.states
        }
        for state_id in in_tree.keys() ^ in_sessions.keys():
            state = in_tree.get(state_id) or in_sessions[state_id]
            for states in (self._by_identity.get(state.ledger.identity, []), state.session.states):
                if state in states:
                    states.remove(state)
            if not any(isinstance(e, Evicted) and e.state_id == state_id for e in self.events):
                self.events.append(self._evicted(state, EvictionReason.FAILED))
        self._by_identity = {one: states for one, states in self._by_identity.items() if states}
        for state in self:
            state.parent = self.find_before(state.ledger, state.position)
        self.slots.reassign(self._owners(working))
        self.pages.recount([*tables, *(state.pages for state in self)])
        for session in self.sessions:
            self.forget_if_gone(session)

    def check_invariants(
        self, working: dict[SlotId, LaneId], tables: Iterable[Sequence[PageId]]
    ) -> None:
        """Raise InvariantBroken when slots, pages, sessions and the tree contradict each other."""
        self.slots.check_invariants(self._owners(working))
        self.pages.check_invariants([*tables, *(state.pages for state in self)])
        owned = [state for session in self.sessions for state in session.states]
        if {id(one) for one in owned} != {id(one) for one in self} or len(owned) != len(list(self)):
            raise InvariantBroken("a state is not in exactly one session")
        for state in self:
            if len(state.pages) != pages_for(state.position) or state.position < 1:
                raise InvariantBroken(
                    f"state {state.state_id} at {state.position} holds {len(state.pages)} pages"
                )
            if state.parent is not self.find_before(state.ledger, state.position):
                raise InvariantBroken(f"state {state.state_id} has a wrong parent")

    def check_dropped(self, on_lanes: Iterable[Session]) -> None:
        """Raise CurrentSlotDropped if drop mode kept the frontier of a displaced session."""
        present = {session.session_id for session in on_lanes}
        for session in self.sessions:
            if session.frontier is not None and session.session_id not in present:
                raise CurrentSlotDropped(
                    f"session {session.session_id} kept its frontier: this profile drops it",
                    session=session.session_id,
                )

    def _owners(self, working: dict[SlotId, LaneId]) -> dict[SlotId, SlotOwner]:
        owners: dict[SlotId, SlotOwner] = {state.slot: StateOwner(state.state_id) for state in self}
        owners.update({slot: LaneOwner(lane) for slot, lane in working.items()})
        return owners
