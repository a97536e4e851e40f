"""pymemstore against MemLLM's reference design on real facts: same process, same vectors, same questions.

    python benchmarks/bench_reference.py [--quick] [--json FILE] [--gate] [--threads N] [--only redocred|demo]

Prints one table. All answers of pymemstore are compared with a brute force in double precision; a difference
gives status 1. README.md in this folder says what the rows mean.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import inputs as data
import numpy as np
from oracle import BruteForce, Truth
from peers.reference_design import PeerHit, ReferenceMemory
from report import Row, machine, table

import pymemstore
from pymemstore.embedders import RelationWords, Surface

Taus = tuple[float, float, float]
PAPER: Taus = (0.7, 0.7, 0.85)
EDITING: Taus = (0.85, 0.2, 0.6)  # the paper's second setting
SMALL: Taus = (0.6, 0.5, 0.7)  # the default embedders', for small stores
BATCH = 10_000  # triples a call of add_many, on both sides
BLOCK = 50  # questions that one side answers before the other has its turn
ADD_GATE, QUERY_GATE = 5.0, 10.0


# Building both sides


def add_ours(inputs: data.Inputs, path: Path, threads: int) -> tuple[pymemstore.Memory, float]:
    """A new store with all triples, and the seconds that add_many took, commits to the disk included."""
    memory = pymemstore.open(path, threads=threads)
    spent = 0.0
    for triples, vectors in inputs.batches(BATCH):
        start = time.perf_counter()
        memory.add_many(triples, vectors=vectors)
        spent += time.perf_counter() - start
    return memory, spent


def add_theirs(inputs: data.Inputs, threads: int) -> tuple[ReferenceMemory, float]:
    """The peer with all triples, and the seconds that its add_many took."""
    dims = inputs.entity_vectors.shape[1], inputs.relation_vectors.shape[1]
    peer = ReferenceMemory(*dims, len(inputs.entities), threads=threads)
    spent = 0.0
    for triples, vectors in inputs.batches(BATCH):
        start = time.perf_counter()
        peer.add_many(triples, vectors)
        spent += time.perf_counter() - start
    return peer, spent


# Right answers


def check_ours(
    name: str, inputs: data.Inputs, truths: Sequence[Truth], taus: Taus, results: Sequence[Any]
) -> int:
    """How many answers differ from brute force. Scores may differ by 1e-6, thresholds bind to within 1e-7."""
    oracle = BruteForce(inputs)
    wrong = 0
    for i, (truth, result) in enumerate(zip(truths, results, strict=True)):
        got = {(h.triple.subject, h.triple.relation, h.triple.object): h.score for h in result.hits}
        odd = [f for f in got.keys() ^ truth.hits.keys() if oracle.margin(f, i, taus, truth) > 1e-7]
        off = [f for f in got.keys() & truth.hits.keys() if abs(got[f] - truth.hits[f]) > 1e-6]
        order = [(-h.score, h.triple_id) for h in result.hits]
        names = list(dict.fromkeys(h.name for h in result.hits))
        slot = 2 if inputs.questions[i].objects else 0
        if (
            odd
            or off
            or order != sorted(order)
            or names != result.names
            or any(h.name != h.triple[slot] for h in result.hits)
            or len(got) != len(result.hits)
            or result.truncated
            or not result.complete
        ):
            wrong += 1
            if wrong <= 3:
                print(
                    f"  {name} {taus}: {inputs.questions[i]}: differs in {odd[:3]} {off[:3]}", file=sys.stderr
                )
    return wrong


def losses(inputs: data.Inputs, truths: Sequence[Truth], taus: Taus, peer: ReferenceMemory) -> dict[str, int]:
    """Of all true hits: how many the peer gives, loses past k, or loses because its graph missed them."""
    oracle = BruteForce(inputs)
    count = {"true": 0, "kept": 0, "past_k": 0, "graph": 0, "extra": 0, "short": 0}
    for truth, question, q, p in zip(
        truths, inputs.questions, inputs.question_vectors, inputs.question_relation_vectors, strict=True
    ):
        got = {peer.triple(hit.triple_id) for hit in peer.query(q, p, *taus, objects=question.objects)}
        lost = truth.hits.keys() - got
        count["true"] += len(truth.hits)
        count["kept"] += len(truth.hits) - len(lost)
        count["extra"] += len(got - truth.hits.keys())
        count["short"] += bool(lost)
        for fact in lost:
            e = truth.entity[oracle.entity[fact[0] if question.objects else fact[2]]]
            t = truth.relation[oracle.relation[fact[1]]]
            beyond = (truth.entity > e).sum() >= peer.k or (truth.relation > t).sum() >= peer.relation_k
            count["past_k" if beyond else "graph"] += 1
    return count


# Timing


def interleave(
    sides: Sequence[Callable[[int, int], object]], count: int, rounds: int
) -> tuple[list[float], list[float]]:
    """Seconds for all questions, a median over rounds, for each side; and each side's ratio to the first.

    Inside a round the sides take turns every BLOCK questions, so that a busy machine slows both alike; the
    ratios are medians of the rounds' ratios.
    """
    spent = [[0.0] * len(sides) for _ in range(rounds)]
    for this in spent:
        for turn, start in enumerate(range(0, count, BLOCK)):
            for k in range(len(sides)):
                side = (k + turn) % len(sides)
                begin = time.perf_counter()
                sides[side](start, min(count, start + BLOCK))
                this[side] += time.perf_counter() - begin
    medians = [statistics.median(this[side] for this in spent) for side in range(len(sides))]
    ratios = [statistics.median(this[side] / this[0] for this in spent) for side in range(len(sides))]
    return medians, ratios


def our_query(
    memory: pymemstore.Memory,
    inputs: data.Inputs,
    taus: Taus,
    rules: str,
    *,
    text: bool,
    vectors: bool,
    limit: int | None,
) -> Callable[[int, int], list[Any]]:
    """A function that asks questions [start, stop) one at a time, by text, by vectors or by both."""
    tau_e, tau_t, tau_r = taus
    asked = list(
        zip(inputs.questions, inputs.question_vectors, inputs.question_relation_vectors, strict=True)
    )

    def run(start: int, stop: int) -> list[Any]:
        out = []
        for question, q, p in asked[start:stop]:
            known = "subject" if question.objects else "object"
            slots: dict[str, Any] = {}
            if text:
                slots[known] = question.text
                slots["relation"] = question.relation
            if vectors:
                slots[f"{known}_vector"] = q
                slots["relation_vector"] = p
            out.append(memory.query(**slots, tau_e=tau_e, tau_t=tau_t, tau_r=tau_r, rules=rules, limit=limit))
        return out

    return run


def our_query_many(
    memory: pymemstore.Memory, inputs: data.Inputs, taus: Taus
) -> Callable[[int, int], list[Any]]:
    """A function that asks questions [start, stop) in one call. The Query objects are made beforehand."""
    tau_e, tau_t, tau_r = taus
    queries = []
    for question, q, p in zip(
        inputs.questions, inputs.question_vectors, inputs.question_relation_vectors, strict=True
    ):
        slot: dict[str, Any] = {"subject_vector" if question.objects else "object_vector": q}
        query = pymemstore.Query(
            relation_vector=p, tau_e=tau_e, tau_t=tau_t, tau_r=tau_r, rules="none", **slot
        )
        queries.append(query)
    return lambda start, stop: memory.query_many(queries[start:stop])


def their_query(
    peer: ReferenceMemory, inputs: data.Inputs, taus: Taus, *, per_pair: bool
) -> Callable[[int, int], object]:
    """The peer's side of `our_query` by vectors."""
    asked = list(
        zip(inputs.questions, inputs.question_vectors, inputs.question_relation_vectors, strict=True)
    )
    query = peer.query_per_pair if per_pair else peer.query

    def run(start: int, stop: int) -> list[list[PeerHit]]:
        return [query(q, p, *taus, objects=question.objects) for question, q, p in asked[start:stop]]

    return run


def their_text_query(peer: ReferenceMemory, inputs: data.Inputs, taus: Taus) -> Callable[[int, int], object]:
    """The peer's side of `our_query` by text: embedded one at a time by the same embedders."""
    surface, words = Surface(), RelationWords()

    def run(start: int, stop: int) -> list[list[PeerHit]]:
        return [
            peer.query(surface.encode([x.text])[0], words.encode([x.relation])[0], *taus, objects=x.objects)
            for x in inputs.questions[start:stop]
        ]

    return run


def their_query_many(peer: ReferenceMemory, inputs: data.Inputs, taus: Taus) -> Callable[[int, int], object]:
    """The peer's side of `our_query_many`."""
    ways = [question.objects for question in inputs.questions]
    q, p = inputs.question_vectors, inputs.question_relation_vectors
    return lambda a, b: peer.query_many(q[a:b], p[a:b], *taus, ways[a:b])


# One side alone, for memory and bytes


def memory_now() -> dict[str, float]:
    """Resident memory of this process, MB (1e6 bytes): its peak, now, and the part now that no file backs.

    VmHWM rather than getrusage: ru_maxrss of a started process begins at its parent's size.
    """
    values = {}
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        key, _, rest = line.partition(":")
        if key in ("VmHWM", "VmRSS", "RssAnon"):
            values[key] = int(rest.split()[0]) * 1024 / 1e6
    return values


def folder_bytes(folder: Path) -> int:
    """Bytes that a folder's files take on the disk (sparse files count what is allocated)."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def one_side(side: str, path: Path, threads: int) -> dict[str, float]:
    """Build one side and ask every question at each setting; what that took in memory and on the disk."""
    inputs = data.Inputs.load(path)
    before = memory_now()
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        if side == "ours":
            memory, _ = add_ours(inputs, Path(folder) / "store.mem", threads)
            for taus in (PAPER, EDITING, SMALL):
                our_query(memory, inputs, taus, "none", text=False, vectors=True, limit=None)(
                    0, len(inputs.questions)
                )
            after = memory_now()
            memory.close()
            size = folder_bytes(Path(folder))
        else:
            peer, _ = add_theirs(inputs, threads)
            for taus in (PAPER, EDITING, SMALL):
                their_query(peer, inputs, taus, per_pair=False)(0, len(inputs.questions))
            after = memory_now()
            peer.save(folder)
            size = folder_bytes(Path(folder))
    return {
        "peak_mb": after["VmHWM"],
        "grown_mb": after["VmHWM"] - before["VmRSS"],
        "private_mb": after["RssAnon"] - before["RssAnon"],
        "disk_bytes": float(size),
    }


def subprocess_side(side: str, path: Path, threads: int) -> dict[str, float]:
    """`one_side` in a process of its own."""
    command = [sys.executable, __file__, "--side", side, "--inputs", str(path), "--threads", str(threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    values: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return values


# One data set


def run(
    inputs: data.Inputs, work: Path, *, rounds: int, add_rounds: int, threads: int
) -> tuple[list[Row], list[str], int]:
    """Rows of the table, remarks, and how many answers were wrong."""
    rows: list[Row] = []
    kinds = Counter(question.kind for question in inputs.questions)
    remarks = [
        f"{inputs.name}: {len(inputs.triples):,} triples, {len(inputs.entities):,} entities, "
        f"{len(inputs.relations):,} relations; {len(inputs.questions):,} questions "
        f"({', '.join(f'{n:,} {kind}' for kind, n in sorted(kinds.items()))}); "
        f"vectors {inputs.entity_vectors.shape[1]} / {inputs.relation_vectors.shape[1]}"
    ]
    wrong = 0
    took: list[tuple[float, float]] = []
    memory, peer = None, None
    for i in range(add_rounds):
        if memory is not None:
            memory.close()
        memory, ours = add_ours(inputs, work / f"{i}.mem", threads)
        peer, theirs = add_theirs(inputs, threads)
        took.append((ours, theirs))
        if len(memory) != len(inputs.triples) or len(peer) != len(inputs.triples):
            remarks.append(f"WRONG: {len(memory)} and {len(peer)} triples stored")
            wrong += 1
    assert memory is not None and peer is not None
    n = len(inputs.triples)
    ours, theirs = (statistics.median(pair[k] for pair in took) for k in (0, 1))
    ratio = statistics.median(b / a for a, b in took)
    rows.append(Row("add_many, vectors given", "triples/s", n / ours, n / theirs, ADD_GATE, ratio))

    count = len(inputs.questions)
    for taus in (PAPER, EDITING, SMALL):
        shown = f"tau {'/'.join(f'{tau:g}' for tau in taus)}"
        truths = list(BruteForce(inputs).answers(taus))
        one = our_query(memory, inputs, taus, "none", text=False, vectors=True, limit=None)
        many = our_query_many(memory, inputs, taus)
        bad = check_ours("query", inputs, truths, taus, one(0, count))
        bad += check_ours("query_many", inputs, truths, taus, many(0, count))
        wrong += bad
        lost = losses(inputs, truths, taus, peer)
        found = [int((truth.entity >= taus[0]).sum()) for truth in truths]
        remarks.append(
            f"  {shown}: brute force gives {lost['true']:,} hits ({np.mean(found):.1f} entity candidates a "
            f"question, at most {max(found):,}). pymemstore: {2 * count - bad:,} of {2 * count:,} answers "
            f"equal. Reference: keeps {lost['kept'] / max(1, lost['true']):.2%}, loses {lost['past_k']:,} "
            f"past k, {lost['graph']:,} to its graph, adds {lost['extra']:,}; "
            f"{lost['short']:,} questions fall short"
        )

        def compare(
            what: str, gate: float | None, *sides: Callable[[int, int], object], tag: str = shown
        ) -> None:
            seconds, ratios = interleave(sides, count, rounds)
            rows.append(
                Row(f"{what}, {tag}", "queries/s", count / seconds[0], count / seconds[1], gate, ratios[1])
            )

        theirs_one = their_query(peer, inputs, taus, per_pair=False)
        gate = None if taus == EDITING else QUERY_GATE
        compare("query, one at a time", gate, one, theirs_one)
        compare("query_many", gate, many, their_query_many(peer, inputs, taus))
        if taus != SMALL:
            continue
        core = our_query(memory, inputs, taus, "core", text=True, vectors=True, limit=None)
        compare('rules="core", text and vectors', None, core, theirs_one)
        words = our_query(memory, inputs, taus, "none", text=True, vectors=False, limit=None)
        compare("text alone, embedded in the call", None, words, their_text_query(peer, inputs, taus))
        cut = our_query(memory, inputs, taus, "none", text=False, vectors=True, limit=31)
        compare(
            "limit=31 here, one statement a pair there",
            None,
            cut,
            their_query(peer, inputs, taus, per_pair=True),
        )
    memory.close()
    peer.close()

    path = work / "inputs.npz"
    inputs.save(path)
    a, b = subprocess_side("ours", path, threads), subprocess_side("theirs", path, threads)
    for what, unit, key, scale in (
        ("peak RSS of the process", "MB", "peak_mb", 1.0),
        ("peak RSS above the loaded inputs", "MB", "grown_mb", 1.0),
        ("of it at the end, not file pages", "MB", "private_mb", 1.0),
        ("bytes on the disk", "MB", "disk_bytes", 1e6),
        ("bytes on the disk a triple", "B", "disk_bytes", float(n)),
    ):
        rows.append(Row(what, unit, a[key] / scale, b[key] / scale, None, b[key] / a[key]))
    return rows, remarks, wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer facts, questions and rounds: under 30 seconds"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write everything there")
    parser.add_argument("--gate", action="store_true", help="status 1 when a ratio misses its gate")
    parser.add_argument("--threads", type=int, default=1, help="threads on both sides (default 1)")
    parser.add_argument("--only", choices=("redocred", "demo"))
    parser.add_argument("--side", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    parser.add_argument("--inputs", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(one_side(options.side, options.inputs, options.threads)))
        return 0
    asked = 300 if options.quick else 1500
    sets: list[Callable[[], data.Inputs]] = []
    if options.only != "demo":
        sets.append(lambda: data.redocred(asked))
    if options.only != "redocred":
        sets.append(lambda: data.demo(asked, facts=12_000 if options.quick else None))
    rows: list[tuple[str, Row]] = []
    remarks: list[str] = []
    wrong = 0
    for make in sets:
        with tempfile.TemporaryDirectory(prefix="pymemstore-bench-") as work:
            inputs = make()
            new, said, bad = run(
                inputs,
                Path(work),
                rounds=3 if options.quick else 7,
                add_rounds=1 if options.quick else 3,
                threads=options.threads,
            )
        rows += [(inputs.name, row) for row in new]
        remarks += said
        wrong += bad
    facts = machine(options.threads)
    failed = [row for _, row in rows if row.verdict.startswith("FAIL")]
    print("; ".join(f"{key} {value}" for key, value in facts.items()))
    print("\n".join(remarks) + "\n")
    print(table(rows))
    print(f"\n{len(failed)} gate(s) missed; {wrong} wrong answer(s)")
    if options.json:
        lines = [{"data": name, **vars(row), "verdict": row.verdict} for name, row in rows]
        report = {"machine": facts, "remarks": remarks, "rows": lines, "wrong": wrong}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong or (options.gate and failed) else 0


if __name__ == "__main__":
    sys.exit(main())
