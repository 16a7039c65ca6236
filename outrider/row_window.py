"""The newest hidden rows of a text, as services send them: a head drafts from those of its target.

A row is one of the target's own, of one token, in float16 and little-endian. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.errors import InvalidRequest

HIDDEN_ROWS = 64
"""Rows of a text, the newest: a prompt of any length costs a head one decode. Those before them it
never sees, which costs acceptance; how much is to be measured on a trained head
(docs/decisions/0060)."""

MOST_ROW_BYTES = 1 << 22
"""Of all rows in one message: a quarter of what gRPC takes here, as for other rows. 64 are as many
up to a width of 32,768; of wider ones fewer are sent."""


@dataclass(frozen=True, slots=True)
class RowWindow:
    """Rows of tokens at positions that follow each other, the first of them at `position`."""

    position: int = 0
    rows: tuple[bytes, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def end(self) -> int:
        """The position after the last row's."""
        return self.position + len(self.rows)

    def has_width(self, width: int) -> bool:
        """Return whether each row has so many numbers."""
        return all(len(row) == 2 * width for row in self.rows)

    def since(self, position: int) -> RowWindow:
        """Return the rows of positions from `position` on."""
        skipped = min(len(self), max(0, position - self.position))
        return RowWindow(self.position + skipped, self.rows[skipped:])

    def until(self, position: int) -> RowWindow:
        """Return the rows of positions before `position`."""
        return RowWindow(self.position, self.rows[: max(0, position - self.position)])

    def followed_by(self, more: RowWindow) -> RowWindow:
        """Return the newest rows once there are more, in place of those from its position on.

        After a gap they are those alone.
        """
        if not more.rows:
            return self
        before = self.until(more.position)
        if before.end != more.position:
            return more.newest()
        return RowWindow(before.position, before.rows + more.rows).newest()

    def newest(self) -> RowWindow:
        """Return no more rows than are kept of a text, nor than a message may have."""
        widest = max(map(len, self.rows), default=0)
        count = min(HIDDEN_ROWS, MOST_ROW_BYTES // max(1, widest))
        return self.since(self.end - count)


NO_ROWS = RowWindow()


def read_window(field: str, position: int, rows: Sequence[bytes]) -> RowWindow:
    """Return rows that came in. Raises InvalidRequest for more than a message may have."""
    if position < 0 or len(rows) > HIDDEN_ROWS:
        raise InvalidRequest(field, f"{len(rows)} rows at {position}, at most {HIDDEN_ROWS}")
    if sum(map(len, rows)) > MOST_ROW_BYTES:
        raise InvalidRequest(field, f"more than {MOST_ROW_BYTES} bytes")
    return RowWindow(position, tuple(rows))
