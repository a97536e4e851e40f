"""Memory writes: a model extracts the facts of documents, a sentence at a time (MemLLM section 3.2)."""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .. import _input, calls
from ..aio import AsyncMemory
from ..backends._tokens import Tokens
from ..backends.base import Backend, Generation, Guide, Params, Segment
from ..errors import InvalidArgument, MemstoreError
from ..memory import Memory
from .constraints import CONTROL, Constraint, Guides, constrained
from .sentences import split

if TYPE_CHECKING:
    from .automaton import Vocabulary

__all__ = ["Document", "Provenance", "SentenceTrace", "WriteReport", "Writer"]

_OPEN, _CLOSE = "({MEM_WRITE-->", "})"
_START, _END = "({USER_ST})", "({USER_END})"
_CONTEXT_TOKENS, _CONTEXT_CHARACTERS = 1024, 4096
_TAGS = 32  # tokens of the tags around a sentence and of the call's beginning, at most
# In text that a server tokenises as a whole: the marks of calls, and what may be a control token.
_MARKS = re.compile(rf"\(\{{|\}}\)|{CONTROL.pattern}")
Policy = Literal["append", "replace"]


class Document(NamedTuple):
    """A text to be read.

    Attributes:
        text: the text.
        id: what its facts' provenance calls it.
    """

    text: str
    id: str


class Provenance(NamedTuple):
    """Where a fact was read: the `source` of what a `Writer` stores.

    Attributes:
        document: the document's id.
        sentence: the sentence's number in it, from 0.
        start, end: the sentence's place in the text, in characters.
    """

    document: str
    sentence: int
    start: int
    end: int

    def __str__(self) -> str:
        """The source as it is stored: a JSON list."""
        return json.dumps(list(self), ensure_ascii=False, separators=(",", ":"))

    @staticmethod
    def parse(source: str) -> Provenance:
        """The provenance that a source holds. InvalidArgument for any other source."""
        try:
            document, sentence, start, end = json.loads(source)
            if isinstance(document, str) and all(type(n) is int for n in (sentence, start, end)):
                return Provenance(document, sentence, start, end)
        except (ValueError, TypeError):
            pass
        raise InvalidArgument(f"not the provenance of a written fact: {source!r:.80}")


@dataclass(frozen=True)
class SentenceTrace:
    """One sentence: its place in the text, what the model wrote (from `({MEM_WRITE-->` to `})`), the facts in
    it, and what was wrong. `pretext`: sentences before it that the model saw; `cut`: how many it did not."""

    start: int
    end: int
    output: str
    facts: tuple[calls.Fact, ...]
    errors: tuple[str, ...]
    pretext: int
    cut: int


@dataclass
class WriteReport:
    """What came of a document.

    Attributes:
        document: its id.
        sentences: how many it has.
        facts: facts in it, each once.
        repeats: how often a fact was told again. facts + repeats + errors are all parts of calls, and the
            unterminated calls.
        new, existing: of `facts`, stored now, or there before.
        replaced: facts that the policy "replace" displaced.
        errors: parts of calls that are no fact, and calls that have no end: each reported in `trace`.
        unterminated: calls that have no end; nothing of them is stored.
        skipped: sentences that were not given to the model: too long, or what is in them can't be tokenised
            as data; `trace` says which.
        cut: sentences whose pretext was cut to `context_tokens`.
        late_stopping: whether late stopping chose the ends of the calls.
        constrained: whether the calls were held to the syntax.
        prompt_tokens, generated_tokens: of all generations.
        trace: each sentence.
        notes: what was done otherwise than asked, a line each.
    """

    document: str
    sentences: int = 0
    facts: int = 0
    repeats: int = 0
    new: int = 0
    existing: int = 0
    replaced: int = 0
    errors: int = 0
    unterminated: int = 0
    skipped: int = 0
    cut: int = 0
    late_stopping: bool = False
    constrained: bool = False
    prompt_tokens: int = 0
    generated_tokens: int = 0
    trace: list[SentenceTrace] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class _Work:
    """A document on its way."""

    document: Document
    report: WriteReport
    waiting: int = 0
    found: list[tuple[calls.Fact, Provenance]] = field(default_factory=list)


@dataclass(frozen=True)
class _Row:
    """A sentence that waits for the model."""

    work: _Work
    place: Provenance
    prompt: tuple[Segment, ...]
    context: str  # pretext and sentence, for constraints
    pretext: int
    cut: int


class Writer:
    """Extracts facts with a write model and stores them.

    For each sentence the model sees the sentences before it and the sentence between `({USER_ST})` and
    `({USER_END})`, and writes a call with its facts. A document's facts are stored in one transaction, each
    with its `Provenance` as source: a document is stored whole or not at all.

    Only terminated calls and well-formed parts take effect. The document's text is data: what looks like a
    call or a control token in it is tokenised as text; where the backend can't (`Backend.can` lacks "data"),
    a sentence with such marks is skipped, and left out of the pretext of others.

    Args:
        memory: a `Memory` or an `AsyncMemory`. The coroutines write to it in a thread.
        backend: the model.
        policy: "append" adds the facts. "replace" makes them the only ones of their subject and relation: of
            several objects in one document all are kept. Subject and relation are compared exactly. What is
            there already stays as it is, with its provenance.
        language: of the sentences; see `sentences.split`.
        batch: sentences in a batch, of one document or several.
        max_tokens: most tokens of one call.
        context_tokens: most tokens of the pretext, which is cut between sentences, and of a sentence: one
            that is longer is skipped. At least 1; characters where the backend has no tokenizer. None: 1,024
            (4,096 characters), or less where the tokenizer says that the model takes less.
        late_stop: late stopping (appendix A). None: where the backend can; True: InvalidArgument where not.
        patience: K of late stopping.
        relations: the only relations that count; facts with others are errors. None: all.
        constraint: "auto": hold calls to the syntax, with `relations` and with names out of the pretext and
            the sentence, where the backend takes guides; to the syntax alone where it takes grammars. None:
            free. Or a function from that text to a maker of guides.
        temperature: above 0 the calls are sampled; not with late stopping.

    Raises:
        InvalidArgument: a wrong option.
    """

    def __init__(
        self,
        memory: Memory | AsyncMemory,
        backend: Backend,
        *,
        policy: Policy = "append",
        language: str = "en",
        batch: int = 8,
        max_tokens: int = 256,
        context_tokens: int | None = None,
        late_stop: bool | None = None,
        patience: int = 5,
        relations: Iterable[str] | None = None,
        constraint: Constraint = "auto",
        temperature: float = 0.0,
    ) -> None:
        _input.choice(policy, "policy", ("append", "replace"))
        self.memory = memory.memory if isinstance(memory, AsyncMemory) else memory
        self.backend, self.policy, self.language = backend, policy, language
        self.batch = _input.integer(batch, "batch", 1)
        self._params = Params(max_tokens=max_tokens, stop=(_CLOSE,), temperature=temperature)
        self._patience = _input.integer(patience, "patience", 1)
        self.relations = (
            None if relations is None else tuple(dict.fromkeys(_input.names(relations, "relation")))
        )
        if self.relations == ():
            raise InvalidArgument("relations: none given")
        self._notes: list[str] = []
        tokenizer = backend.tokenizer
        self._tokens = None if tokenizer is None else Tokens(tokenizer)
        if context_tokens is None:
            self.context_tokens = _default_context(tokenizer, max_tokens)
        else:
            self.context_tokens = _input.integer(context_tokens, "context_tokens", 1)
        self._closing = self._late(late_stop)
        self._guide, self._grammar = constrained(constraint, backend, "write", self._guides, self._notes)

    # ---- writing ------------------------------------------------------------------------------------

    def write(self, text: str, document: str = "text") -> WriteReport:
        """Extracts and stores a document's facts.

        Raises:
            BackendError, MemstoreError: of the model and of the memory, with `partial`: the report so far;
                nothing of the document is stored.
        """
        return next(self.write_many([Document(text, document)]))

    def write_many(self, documents: Iterable[Document | tuple[str, str]]) -> Iterator[WriteReport]:
        """Extracts and stores (text, id) after (text, id), in batches over sentences and documents. Each
        report comes when its document is stored. Errors as of `write`; documents reported before are stored.
        """
        run = self._run(documents)
        advance: Callable[[], Any] = run.__next__
        try:
            while True:
                try:
                    request = advance()
                except StopIteration:
                    return
                answer = None
                try:
                    if isinstance(request, WriteReport):
                        yield request
                    elif isinstance(request, _Work):
                        self._store(request)
                    else:
                        answer = self.backend.generate(*request)
                except MemstoreError as error:
                    advance = functools.partial(run.throw, error)
                else:
                    advance = functools.partial(run.send, answer)
        finally:
            run.close()

    async def awrite(self, text: str, document: str = "text") -> WriteReport:
        """`write` for asyncio."""
        async for report in self.awrite_many([Document(text, document)]):
            return report
        raise AssertionError

    async def awrite_many(
        self, documents: Iterable[Document | tuple[str, str]]
    ) -> AsyncIterator[WriteReport]:
        """`write_many` for asyncio."""
        run = self._run(documents)
        advance: Callable[[], Any] = run.__next__
        try:
            while True:
                try:
                    request = advance()
                except StopIteration:
                    return
                answer = None
                try:
                    if isinstance(request, WriteReport):
                        yield request
                    elif isinstance(request, _Work):
                        await asyncio.to_thread(self._store, request)
                    else:
                        answer = await self.backend.agenerate(*request)
                except MemstoreError as error:
                    advance = functools.partial(run.throw, error)
                else:
                    advance = functools.partial(run.send, answer)
        finally:
            run.close()

    # ---- the loop, without input and output ----------------------------------------------------------

    def _run(
        self, documents: Iterable[Document | tuple[str, str]]
    ) -> Generator[WriteReport | _Work | tuple[list[tuple[Segment, ...]], Params], Any, None]:
        """Yields batches to generate (is sent their generations), works to store, reports to give out."""
        queue: list[_Row] = []
        works: list[_Work] = []
        ended = False
        source = iter(documents)
        while works or not ended:
            while not ended and len(queue) < self.batch:
                item = next(source, None)
                if item is None:
                    ended = True
                    break
                if isinstance(item, str) or len(item) != 2:
                    raise InvalidArgument(f"expected documents, (text, id), not {item!r:.60}")
                document = Document(*item)
                rows, work = self._rows(document)
                queue += rows
                works.append(work)
            if queue:
                rows, queue = queue[: self.batch], queue[self.batch :]
                yield from self._generate(rows)
            while works and works[0].waiting == 0:
                work = works.pop(0)
                try:
                    yield work
                except MemstoreError as error:
                    error.partial = work.report
                    raise
                yield work.report

    def _rows(self, document: Document) -> tuple[list[_Row], _Work]:
        text = document.text
        if not isinstance(text, str) or not isinstance(document.id, str):
            raise InvalidArgument(f"document {document.id!r:.60}: text and id must be strings")
        report = WriteReport(document.id, notes=list(self._notes))
        report.constrained = self._guide is not None or self._grammar is not None
        report.late_stopping = self._closing is not None
        try:
            spans = split(text, self.language)
        except InvalidArgument as error:
            raise InvalidArgument(f"document {document.id!r:.60}: {error}") from None
        report.sentences = len(spans)
        sizes = [self._size(text[a:b]) for a, b in spans]
        shown = [isinstance(size, int) for size in sizes]
        lengths = [size if isinstance(size, int) else 0 for size in sizes]
        work = _Work(document, report)
        rows = []
        for i, (start, end) in enumerate(spans):
            why = sizes[i]
            if isinstance(why, str) or why > self.context_tokens:
                report.skipped += 1
                why = why if isinstance(why, str) else f"longer than context_tokens: {why}"
                report.trace.append(SentenceTrace(start, end, "", (), (why,), 0, i))
                continue
            first, room = i, self.context_tokens
            while first > 0 and lengths[first - 1] <= room:
                first -= 1
                room -= lengths[first]
            report.cut += first > 0
            if all(shown[first:i]):
                pretext = text[spans[first][0] : start]
            else:
                pretext = "".join(text[spans[j][0] : spans[j + 1][0]] for j in range(first, i) if shown[j])
            parts = [Segment(pretext, data=True)] if pretext else []
            parts += [Segment(_START), Segment(text[start:end], data=True), Segment(_END + _OPEN)]
            context = pretext + text[start:end]
            place = Provenance(document.id, i, start, end)
            rows.append(_Row(work, place, tuple(parts), context, i - first, first))
        work.waiting = len(rows)
        return rows, work

    def _generate(self, rows: list[_Row]) -> Generator[tuple[list[tuple[Segment, ...]], Params], Any, None]:
        params = self._params
        if self._guide is not None:
            makers = iter([self._guide(row.context) for row in rows])
            params = replace(params, guide=lambda: next(makers)())
        elif self._grammar is not None:
            params = replace(params, grammar=self._grammar)
        chooser: Any = None
        if self._closing is not None:
            from .late_stopping import LateStoppingChooser

            eos = getattr(self.backend, "eos", ())
            chooser = LateStoppingChooser(len(rows), self._closing, eos, patience=self._patience)
            params = replace(params, chooser=lambda n: chooser)
        try:
            made: Sequence[Generation] = yield [row.prompt for row in rows], params
        except MemstoreError as error:
            error.partial = rows[0].work.report
            raise
        for i, (row, generation) in enumerate(zip(rows, made, strict=True)):
            closed = generation.stop == _CLOSE or (chooser is not None and chooser.kept(i) is not None)
            self._read(row, generation, closed)

    def _read(self, row: _Row, generation: Generation, closed: bool) -> None:
        """Takes a sentence's facts."""
        work, place, usage = row.work, row.place, generation.usage
        report = work.report
        report.prompt_tokens += usage.prompt
        report.generated_tokens += usage.generated
        output = _OPEN + generation.text + (_CLOSE if closed else "")
        facts: list[calls.Fact] = []
        errors: list[str] = []
        for event in calls.parse(output):
            if isinstance(event, calls.Write):
                known = [f for f in event.facts if self.relations is None or f.relation in self.relations]
                facts += known
                errors += [
                    f"not among the relations: {'>>'.join(f)!r}" for f in event.facts if f not in known
                ]
                report.repeats += event.repeats
                errors += [f"{e.message}: {e.text!r}" for e in event.errors]
            elif isinstance(event, calls.CallError):
                errors.append(event.message)
            elif not isinstance(event, calls.Text) or event.text.strip():
                errors.append("the call ended before the model did")
        report.unterminated += not closed
        report.errors += len(errors)
        work.found += [(fact, place) for fact in facts]
        work.waiting -= 1
        report.trace.append(
            SentenceTrace(place.start, place.end, output, tuple(facts), tuple(errors), row.pretext, row.cut)
        )

    def _store(self, work: _Work) -> None:
        """Stores a document's facts in one transaction."""
        report = work.report
        report.trace.sort(key=lambda trace: trace.start)
        facts = {fact for fact, _ in work.found}
        report.facts = len(facts)
        report.repeats += len(work.found) - len(facts)
        removed = []
        with self.memory.transaction() as transaction:
            if self.policy == "replace":
                # Not Memory.replace: of several objects it would drop those that are there, with their
                # provenance, to add them anew.
                for subject, relation in dict.fromkeys(fact[:2] for fact, _ in work.found):
                    for triple in self.memory.triples(subject, relation):
                        if triple[:3] not in facts:
                            removed.append(transaction.remove(*triple[:3]))
            added = [transaction.add(*fact, source=str(place)) for fact, place in work.found]
        report.new = sum(result.inserted for result in added)
        report.existing = report.facts - report.new
        report.replaced = sum(result.value for result in removed)

    # ---- parts ----------------------------------------------------------------------------------------

    def _size(self, sentence: str) -> int | str:
        """Its tokens, or why it can't be shown to the model."""
        data = "data" in self.backend.can
        if not data and _MARKS.search(sentence):
            return "marks that the backend can't tokenise as data"
        if self._tokens is None:
            return len(sentence)
        try:
            ids = self._tokens.encode([Segment(sentence, data=data)])
        except InvalidArgument as error:
            return str(error)
        return len(ids) - len(self._tokens.start)

    def _late(self, wanted: bool | None) -> int | None:
        """The closing token's id where late stopping is on."""
        if wanted is False:
            return None
        why = None
        closing: list[int] = []
        if "chooser" not in self.backend.can:
            why = "the backend takes no choosers"
        elif self._params.temperature > 0:
            why = "the temperature is not 0"
        else:
            closing = self.backend.tokenizer(_CLOSE, add_special_tokens=False)["input_ids"]
            if len(closing) != 1:
                why = f"{_CLOSE!r} is no single token of the tokenizer"
        if why is None:
            return int(closing[0])
        if wanted:
            raise InvalidArgument(f"late stopping: {why}")
        self._notes.append(f"no late stopping: {why}")
        return None

    def _guides(self, vocabulary: Vocabulary) -> Guides:
        """Of `relations`, and of entities out of the sentence and its pretext."""
        from .automaton import Spans, WriteCall

        tokens, relations = self._params.max_tokens, self.relations

        def guides(context: str) -> Callable[[], Guide]:
            return WriteCall(
                vocabulary, entities=Spans(context), relations=relations, max_tokens=tokens, prefix=_OPEN
            )

        return guides


def _default_context(tokenizer: Any, max_tokens: int) -> int:
    """Pretext and sentence each get half of what the call and the tags leave; the call a quarter at least."""
    if tokenizer is None:
        return _CONTEXT_CHARACTERS
    length = int(min(getattr(tokenizer, "model_max_length", None) or 1 << 30, 1 << 30))
    left = length - min(max_tokens, length // 4) - _TAGS
    return max(1, min(_CONTEXT_TOKENS, left // 2))
