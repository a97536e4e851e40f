"""Sentences of a text, by the package sentencex; the text is left as it is."""

from __future__ import annotations

from ..errors import InvalidArgument

__all__ = ["split"]

# sentencex 1.0 can fail at white space of more than one byte; the copy that it sees has one of one byte.
_SPACES = {c: "\n" if chr(c) in "\x85\u2028\u2029" else " " for c in range(128, 0x3001) if chr(c).isspace()}


def split(text: str, language: str = "en") -> list[tuple[int, int]]:
    """The (start, end) of each sentence, in characters, in order.

    A sentence begins and ends with what is no white space; between them, before and behind is white space
    only. An empty line ends a sentence, a single line break does not.

    Args:
        language: an ISO 639 code; it tells abbreviations and signs. English rules where it is not known.

    Raises:
        InvalidArgument: a lone surrogate in the text; the package sentencex is not there
            (`pip install "pymemstore[llm]"`).
    """
    try:
        import sentencex
    except ImportError as error:
        raise InvalidArgument('splitting sentences needs: pip install "pymemstore[llm]"') from error
    shown = text.translate(_SPACES)  # as long as the text
    try:
        shown.encode()
        pieces = sentencex.segment(language, shown)
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"character {error.start} of the text is a lone surrogate") from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of its native code; no Exception
            raise
        pieces = shown.splitlines(keepends=True)
    if "".join(pieces) != shown:
        pieces = shown.splitlines(keepends=True)
    spans, at = [], 0
    for piece in pieces:
        spans.append(_trimmed(text, at, at + len(piece)))
        at += len(piece)
    return [(start, end) for start, end in spans if start < end]


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())
