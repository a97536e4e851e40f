"""Stop strings in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopMatcher"]


class StopMatcher:
    """Finds the first stop string of a text that is fed in pieces, however it is cut.

    The first is the one that is complete first; of two that end together the one that begins first.

    Attributes:
        stop: the stop string that came; None so far.
        held: what was fed and may still be the beginning of a stop string.
        rest: what was fed after the stop string in the piece that completed it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        self.stop: str | None = None
        self.held = ""
        self.rest = ""

    def feed(self, piece: str) -> str:
        """Takes the next piece; the text that is now sure to stand before any stop string.

        After the stop string has come all further text is ignored.
        """
        if self.stop is not None:
            return ""
        text = self.held + piece
        found: tuple[int, int, str] | None = None
        for stop in self._stops:
            at = text.find(stop)
            if at >= 0 and (found is None or (at + len(stop), at) < found[:2]):
                found = at + len(stop), at, stop
        if found is not None:
            end, at, self.stop = found
            self.held, self.rest = "", text[end:]
            return text[:at]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The text has ended: what was held back, "" after a stop string."""
        held, self.held = self.held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a beginning of `stop`, but not the whole of it."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
