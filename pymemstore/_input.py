"""Checks of what a caller hands in. Every refusal is an InvalidArgument that names the item."""

from __future__ import annotations

import contextlib
import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from .embedders_base import Embedder, Thresholds
from .errors import InvalidArgument
from .results import Triple, TripleLike

# Large inputs are looked at in slices, so that no single step holds the interpreter's lock for long.
SLICE = 10_000
# In the order of the core's match codes: a rule's bit is 1 << its index.
MATCHES = (
    "exact", "alias", "folded", "article", "plural", "word_order",
    "acronym", "initials", "demonym", "trailing",
)  # fmt: skip
_RULES = {"none": _core.RULES_NONE, "core": _core.RULES_CORE, "wide": _core.RULES_WIDE}
_SEARCHES = ("auto", "exact", "graph")
_SMALLEST, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
_SLOTS = ("subject", "relation", "object")
Rows = list[Sequence[str]]


def shown(value: object) -> str:
    """What a refusal says of `value`: the start of its repr, which may be long, or fail (as of 10**5000)."""
    try:
        return repr(value)[:60]
    except Exception:
        return f"<{type(value).__name__} without repr>"


def each(value: object, what: str) -> Iterator[Any]:
    """An iterator over `value`. Text, and what can't be iterated over (an array without dimensions looks as
    if it could), is refused; `what` says what it should be."""
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        with contextlib.suppress(TypeError):
            return iter(value)
    raise InvalidArgument(f"{what}, not {type(value).__name__}")


def path(value: object) -> bytes:
    """A path as the operating system has it. It need not be UTF-8 there, see os.fsencode."""
    try:
        where = os.fspath(value)  # type: ignore[call-overload]
        if isinstance(where, str) and where and "\0" not in where:
            return os.fsencode(where)
    except (TypeError, UnicodeEncodeError):
        pass
    raise InvalidArgument(f"path is {shown(value)}, expected a non-empty str or PathLike of str")


def name(value: object, what: str) -> str:
    """`value` as a name: a non-empty str of at most MAX_NAME_BYTES that has a UTF-8 form. Kept as it is."""
    if not isinstance(value, str):
        said = "None" if value is None else f"{shown(value)} ({type(value).__name__})"
        raise InvalidArgument(f"{what} is {said}, expected str")
    if not value:
        raise InvalidArgument(f"{what} is empty")
    if len(value) * 4 > _core.MAX_NAME_BYTES or not value.isascii():
        try:
            size = len(value.encode())
        except UnicodeEncodeError as e:
            raise InvalidArgument(
                f"{what} has a lone surrogate, U+{ord(value[e.start]):04X}, at character {e.start}: not valid"
            ) from None
        if size > _core.MAX_NAME_BYTES:
            most = _core.MAX_NAME_BYTES
            raise InvalidArgument(f"{what} has {size} bytes, more than {most}: {value[:40]!r}...")
    return value


def known(value: object, what: str) -> str:
    """`value` as a name to look up: as `name`, but "" is fine. Nothing has that name, so it is not found."""
    return "" if value == "" else name(value, what)


def _all_names(values: Sequence[str]) -> bool:
    """Whether all (str, already) would pass `name`; a fast check that may say False for odd but good
    input."""
    if not all(values) or max(map(len, values), default=0) * 4 > _core.MAX_NAME_BYTES:
        return False
    joined = "".join(values)
    if joined.isascii():
        return True
    try:
        joined.encode()
    except UnicodeEncodeError:
        return False
    return True


def names(values: Iterable[str], what: str) -> list[str]:
    """A list of names; `what` is the word for one of them."""
    listed = list(each(values, f"expected an iterable of {what} names"))
    if not (set(map(type, listed)) <= {str} and _all_names(listed)):
        for i, value in enumerate(listed):
            name(value, f"{what} {i}")
    return listed


def triples(values: Iterable[TripleLike]) -> Iterator[tuple[Rows, tuple[Sequence[str], ...]]]:
    """Slices of `values`, each as its rows and its three columns. The index in a refusal is the one in
    `values`.

    A row is a sequence of exactly three names, or a Triple (whose id is left aside).
    """
    listed = values if isinstance(values, list) else list(each(values, "expected an iterable of triples"))
    for start in range(0, len(listed), SLICE):
        rows: list[Any] = listed[start : start + SLICE]
        if set(map(type, rows)) <= {tuple, list} and set(map(len, rows)) == {3}:
            columns = tuple(zip(*rows, strict=True))
            if all(set(map(type, c)) == {str} and _all_names(c) for c in columns):
                yield rows, columns
                continue
        rows = [_triple(row, start + i) for i, row in enumerate(rows)]
        yield rows, tuple(zip(*rows, strict=True))


def _triple(row: object, index: int) -> tuple[str, str, str]:
    if isinstance(row, Triple):
        row = row[:3]
    if isinstance(row, (str, bytes)) or not isinstance(row, Sequence):
        raise InvalidArgument(f"triple {index}: expected (subject, relation, object), not {shown(row)}")
    if len(row) != 3:
        raise InvalidArgument(f"triple {index}: expected 3 names, not {len(row)}")
    s, r, o = (name(value, f"triple {index}: {slot}") for slot, value in zip(_SLOTS, row, strict=True))
    return s, r, o


def source(value: object, what: str = "source") -> str | None:
    return None if value is None else name(value, what)


def sources(value: object, n: int) -> str | list[str | None] | None:
    """One source for all, or a list of `n` (None: none)."""
    if value is None or isinstance(value, str):
        return source(value)
    listed = [
        source(v, f"source {i}") for i, v in enumerate(each(value, f"source: expected str or {n} of them"))
    ]
    if len(listed) != n:
        raise InvalidArgument(f"source: {len(listed)} given for {n} triples")
    return listed


_F32 = np.dtype(np.float32)  # numpy has one object for it
_F32_STRIDES = (4,)


def _float32(value: object, what: str) -> npt.NDArray[np.float32]:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError, OverflowError) as e:  # ragged; a tensor on a device
        raise InvalidArgument(f"{what}: not a numeric array: {e}") from None
    if array.dtype.kind not in "fiu":
        raise InvalidArgument(f"{what}: dtype is {array.dtype}, expected real numbers")
    if array.dtype != np.float32:
        with np.errstate(over="ignore"):
            cast = array.astype(np.float32)
        if not np.isfinite(cast).all():
            _refuse_first(~np.isfinite(array), array, what, "{}")
            _refuse_first(~np.isfinite(cast), array, what, "{}, too large for float32")
        array = cast
    elif not np.isfinite(array).all():
        _refuse_first(~np.isfinite(array), array, what, "{}")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _refuse_first(bad: npt.NDArray[np.bool_], array: npt.NDArray[Any], what: str, text: str) -> None:
    found = np.argwhere(bad)
    if len(found):
        at = tuple(int(i) for i in found[0])
        row = f"{what}, row {at[0]}" if len(at) == 2 else what
        raise InvalidArgument(f"{row}: component {at[-1] if at else 0} is {text.format(array[at])}")


def query_vector(value: object, dim: int, what: str) -> npt.NDArray[np.float32]:
    """As `vector`, but an array of the right kind, as an inference server gives it once a query, is not
    looked into: the core refuses what is not finite or zero, and `vector` then says where."""
    if (
        type(value) is np.ndarray
        and value.dtype is _F32
        and value.shape == (dim,)
        and (dim == 1 or value.strides == _F32_STRIDES)
    ):
        return value
    return vector(value, dim, what)


def vector(value: object, dim: int, what: str) -> npt.NDArray[np.float32]:
    """One vector: float32 (dim,), finite and not zero. Its length is left as it is."""
    array = _float32(value, what)
    if array.shape != (dim,):
        raise InvalidArgument(f"{what}: shape is {_shape(array)}, expected ({dim},)")
    _check_lengths(array[None, :], what.replace("{", "{{").replace("}", "}}"))
    return array


def vectors(value: object, n: int, dim: int, what: str, *, copy: bool = False) -> npt.NDArray[np.float32]:
    """Vectors of n names: float32 (n, dim), finite and none of them zero. Their lengths are left as they
    are."""
    array = _float32(value, what)
    if array.ndim != 2 or array.shape[1] != dim:
        raise InvalidArgument(f"{what}: shape is {_shape(array)}, expected ({n}, {dim})")
    if len(array) != n:
        raise InvalidArgument(f"{what}: {len(array)} rows for {n} names")
    _check_lengths(array, f"{what}, row {{}}")
    return array.copy() if copy and np.shares_memory(array, np.asarray(value)) else array


def _check_lengths(rows: npt.NDArray[np.float32], what: str) -> None:
    """Refuses rows that the core could not scale to unit length: their norms lie outside float32's normal
    range."""
    if not rows.size:
        return
    peaks = np.abs(rows).max(axis=1)
    root = math.sqrt(rows.shape[1])
    for i in np.flatnonzero((peaks >= _LARGEST / root) | (peaks < _SMALLEST)):
        norm = float(np.linalg.norm(rows[i].astype(np.float64)))
        if norm == 0:
            raise InvalidArgument(f"{what.format(i)}: is zero, which has no direction")
        if not _SMALLEST <= norm <= _LARGEST:
            raise InvalidArgument(f"{what.format(i)}: has length {norm:.3g}, outside float32's range")


def _shape(array: npt.NDArray[Any]) -> str:
    return "(" + ", ".join(map(str, array.shape)) + ("," if array.ndim == 1 else "") + ")"


def three_vectors(value: object) -> tuple[object, object, object]:
    """The `vectors` argument of add and add_many: one each for subjects, relations and objects."""
    if value is None:
        return None, None, None
    if isinstance(value, np.ndarray) or not isinstance(value, Sequence) or len(value) != 3:
        raise InvalidArgument("vectors: expected 3 of them (subjects, relations, objects), any of them None")
    return value[0], value[1], value[2]


def threshold(value: object, what: str) -> float:
    """A cosine: a real number in [-1, 1]."""
    if type(value) is float and -1.0 <= value <= 1.0:
        return value
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise InvalidArgument(f"{what} is {shown(value)}, expected a number in [-1, 1]")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as e:
        raise InvalidArgument(f"{what} is not a number: {e}") from None
    if not -1.0 <= number <= 1.0:  # also for nan
        raise InvalidArgument(f"{what} is {number}, outside [-1, 1]")
    return number


def integer(value: object, what: str, least: int = 0, most: int = 2**64 - 1) -> int:
    if isinstance(value, bool):
        raise InvalidArgument(f"{what} is {value}, expected an integer")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgument(f"{what} is {shown(value)}, expected an integer") from None
    if number < least:
        raise InvalidArgument(f"{what} is {shown(number)}, expected at least {least}")
    if number > most:
        raise InvalidArgument(f"{what} is {shown(number)}, expected at most {most}")
    return number


def limit(value: object) -> int:
    """-1 for None: no limit."""
    return -1 if value is None else integer(value, "limit", 1, 2**63 - 1)


def choice(value: object, what: str, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise InvalidArgument(f"{what} is {shown(value)}, expected one of {', '.join(map(repr, allowed))}")
    return value


def search(value: object) -> str:
    return choice(value, "search", _SEARCHES)


def rules(value: object) -> int:
    """A rule set's name, or an iterable of match names, as the core's bit mask."""
    if isinstance(value, str) and value in _RULES:
        return _RULES[value]
    what = f"rules is {shown(value)}, expected 'none', 'core', 'wide' or an iterable of match names"
    mask = 0
    for rule in each(value, what):
        if not isinstance(rule, str) or rule not in MATCHES:
            raise InvalidArgument(f"rules: no rule {shown(rule)}; there are {', '.join(MATCHES)}")
        mask |= 1 << MATCHES.index(rule)
    return mask


def exclude(value: object) -> npt.NDArray[np.uint64] | None:
    """Triple ids as uint64 (n,), or None when there are none."""
    if value is None or (isinstance(value, tuple) and not value):
        return None
    if isinstance(value, np.ndarray) and value.dtype == np.uint64 and value.ndim == 1:
        ids = np.ascontiguousarray(value)
    else:
        items = enumerate(each(value, "exclude: expected an iterable of triple ids"))
        ids = np.array([integer(v, f"exclude, item {i}") for i, v in items], np.uint64)
    return ids if len(ids) else None


def stamp(embedder: Embedder, what: str) -> tuple[str, int, str]:
    """An embedder's name, dimension and version, as a store keeps them."""
    called = name(embedder.name, f"{what}.name")
    version = str(getattr(embedder, "version", ""))
    dim = integer(embedder.dim, f"dim of {what} {called!r:.60}", 1, 2**31 - 1)
    return called, dim, version and name(version, f"version of {what} {called!r:.60}")


def three_thresholds(value: object, what: str) -> Thresholds | None:
    """An embedder's thresholds: a `Thresholds`, or another tuple of three cosines. None: it has none."""
    if value is None:
        return None
    if not isinstance(value, tuple) or len(value) != 3:
        raise InvalidArgument(f"thresholds of {what}: {shown(value)}, expected three numbers in [-1, 1]")
    fields = zip(Thresholds._fields, value, strict=True)
    return Thresholds(*(threshold(part, f"{field} of {what}") for field, part in fields))


def callback(value: Callable[..., object] | None, what: str) -> Callable[[int, int], object] | None:
    if value is not None and not callable(value):
        raise InvalidArgument(f"{what} is {shown(value)}, expected a callable (done, total)")
    return value


def seconds(value: object, what: str) -> float:
    """A time span: a finite number, not negative."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InvalidArgument(f"{what} is {shown(value)}, expected seconds")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < 0:
        raise InvalidArgument(f"{what} is {number}, expected a finite number of seconds, at least 0")
    return number
