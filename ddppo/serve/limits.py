"""What one client may ask of a server."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """max_message_bytes: of a request or a reply. messages_per_s: of a session; what comes faster waits, unread.

    idle_s: a session without a request for so long is ended. step_s: a world that does not answer a request within it
    is ended with its session. send_s: so is one whose client does not take an answer. ready_s: how long a client whose
    slot is being made may wait at the handshake. max_in_flight: requests of a session that wait for their answers.
    max_connections: all of them. request_s: who connects sends a whole request within it.
    """

    max_message_bytes: int = 2**20
    messages_per_s: float = 10_000.0
    idle_s: float = 300.0
    step_s: float = 60.0
    send_s: float = 10.0
    ready_s: float = 10.0
    max_in_flight: int = 16
    max_connections: int = 1024
    request_s: float = 10.0


class Allowance:
    """So many messages a second on average, a second's worth at once."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._left = per_s
        self._at: float | None = None

    def wait_s(self, now: float) -> float:
        """Take one message; return how long it has to wait."""
        if self._at is not None:
            self._left = min(self._per_s, self._left + (now - self._at) * self._per_s)
        self._at = now
        self._left -= 1.0
        return max(0.0, -self._left / self._per_s)
