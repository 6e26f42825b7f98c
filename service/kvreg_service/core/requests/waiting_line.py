"""The queue of requests that wait for a lane, in order of arrival, with a limit and a timeout."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from kvreg_service.core.errors import Overloaded, QueueTimeout
from kvreg_service.core.ids import RequestId
from kvreg_service.core.requests.request import Request

RETRY_AFTER_S = 1.0
"""When to retry after a full queue; lanes come free within seconds."""


class WaitingLine:
    """Requests in the order of their arrival. It knows nothing of lanes and pages."""

    def __init__(self, limit: int, timeout_s: float) -> None:
        self._limit = limit
        self._timeout_s = timeout_s
        self._requests: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """Yield the requests, the longest waiting first."""
        return iter(self._requests)

    @property
    def head(self) -> Request | None:
        """The request that waits longest, if any waits."""
        return self._requests[0] if self._requests else None

    def require_room(self, num_idle_lanes: int) -> None:
        """Raise Overloaded if one more request could neither run nor wait.

        Requests that idle lanes take at once do not count.
        """
        num_waiting = len(self._requests) - num_idle_lanes
        if num_waiting >= self._limit:
            raise Overloaded(
                f"the queue is full: {self._limit} requests wait for a lane",
                retry_after_s=RETRY_AFTER_S,
                limit=self._limit,
            )

    def append(self, request: Request) -> None:
        """Put a request at the end."""
        self._requests.append(request)

    def put_back(self, request: Request) -> None:
        """Put a request back at the head of the queue."""
        self._requests.appendleft(request)

    def find(self, request_id: RequestId) -> Request | None:
        """Return the request of that id, or None."""
        return next((one for one in self._requests if one.request_id == request_id), None)

    def remove(self, request: Request) -> None:
        """Remove a request from any position."""
        # By identity: two requests are never equal, and comparing their prompts takes time.
        for index, one in enumerate(self._requests):
            if one is request:
                del self._requests[index]
                return

    def expire(self, now_s: float) -> list[tuple[Request, QueueTimeout]]:
        """Remove the requests that have waited too long; return each with its error."""
        late = [one for one in self._requests if now_s - one.arrival_s > self._timeout_s]
        expired = []
        for request in late:
            self.remove(request)
            error = QueueTimeout(
                f"the request waited {now_s - request.arrival_s:.1f} s for a lane, and the limit "
                f"is {self._timeout_s:g} s",
                retry_after_s=self._timeout_s,
            )
            expired.append((request, error))
        return expired
