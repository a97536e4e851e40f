"""MemLLM's reference design, rendered compactly: the peer that `bench_reference.py` measures against.

The design (arXiv 2404.11672, section 3.1, and its published implementation): names in two SQLite tables
with unique text, triples in a third with UNIQUE (subject, relation, object) and an index for each
direction, all in memory; one hnswlib graph for entity vectors and one for relation vectors. A query takes
the k nearest entities (300) and the k nearest relations (25), cuts both lists at their thresholds, joins
them with the triples in SQL and keeps what reaches the threshold for the mean of the two similarities.

Choices, each in the peer's favour:

* In process: the published one sits behind a remote-call server, and that cost is left out.
* hnswlib with M=16, ef_construction=200, ef=300 (it needs ef >= k), inner product over unit vectors, its
  whole capacity known beforehand.
* One SQL statement a query, which also fetches the answers' names: the pairs of candidates that reach the
  mean's threshold as a VALUES list or, above 200 pairs, the two lists as IN lists. Of the forms tried
  (json_each too, and one statement a pair, as in the published code) these were the fastest at few and at
  many candidates; `bench_reference.py` also prints what `query_per_pair` takes.
* No LIMIT in SQL (the published one stops at 31 rows a pair), so that only k and the graph can lose
  answers.
* A score passes with the same slack of 1e-6 that pymemstore uses.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import hnswlib
import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
SLACK = 1e-6
_MAX_VALUES = 200  # pairs; above it, IN lists are faster than a VALUES list

_SCHEMA = """
CREATE TABLE entities (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL);
CREATE TABLE relations (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL);
CREATE TABLE triples (id INTEGER PRIMARY KEY, s INTEGER NOT NULL, r INTEGER NOT NULL, o INTEGER NOT NULL,
                      UNIQUE (s, r, o));
CREATE INDEX by_subject ON triples (s, r);
CREATE INDEX by_object ON triples (o, r);
"""
_PAIR = (
    "SELECT t.id, n.name FROM triples t JOIN entities n ON n.id = t.{open} WHERE t.{known} = ? AND t.r = ?"
)


class PeerHit(NamedTuple):
    """One matching triple: the answer's name, the mean similarity, the triple's id in this store."""

    name: str
    score: float
    triple_id: int


class ReferenceMemory:
    """The peer's store. `capacity`: the most entities that it will hold, allocated at once."""

    def __init__(
        self,
        entity_dim: int,
        relation_dim: int,
        capacity: int,
        *,
        relation_capacity: int = 1000,
        k: int = 300,
        relation_k: int = 25,
        m: int = 16,
        ef_construction: int = 200,
        ef: int = 300,
        threads: int = 1,
    ) -> None:
        self.k = k
        self.relation_k = relation_k
        self._db = sqlite3.connect(":memory:", cached_statements=1024)
        self._db.executescript(_SCHEMA)
        self._entities = self._graph(entity_dim, capacity, m, ef_construction, max(ef, k), threads)
        self._relations = self._graph(
            relation_dim, relation_capacity, m, ef_construction, max(ef, relation_k), threads
        )

    @staticmethod
    def _graph(dim: int, capacity: int, m: int, ef_construction: int, ef: int, threads: int) -> hnswlib.Index:
        graph = hnswlib.Index(space="ip", dim=dim)
        graph.init_index(max_elements=capacity, M=m, ef_construction=ef_construction, random_seed=100)
        graph.set_ef(ef)
        graph.set_num_threads(threads)
        return graph

    def close(self) -> None:
        """Free the tables. The graphs go with the object."""
        self._db.close()

    def __len__(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM triples").fetchone()[0])

    # Writing

    def add_many(self, triples: Sequence[tuple[str, str, str]], vectors: tuple[F32, F32, F32]) -> int:
        """Add n triples; their names' unit vectors: (n, dim), (n, rdim), (n, dim). How many are new."""
        subjects, relations, objects = vectors
        first: dict[str, tuple[int, int]] = {}
        first_relation: dict[str, int] = {}
        for row, (s, r, o) in enumerate(triples):
            first.setdefault(s, (0, row))
            first.setdefault(o, (1, row))
            first_relation.setdefault(r, row)
        with self._db:
            ids, new = self._names("entities", list(first))
            if new:
                rows = np.empty((len(new), subjects.shape[1]), np.float32)
                for i, name in enumerate(new):
                    slot, row = first[name]
                    rows[i] = (objects if slot else subjects)[row]
                self._entities.add_items(rows, [ids[name] for name in new])
            relation_ids, new = self._names("relations", list(first_relation))
            if new:
                rows = relations[[first_relation[name] for name in new]]
                self._relations.add_items(rows, [relation_ids[name] for name in new])
            before = self._db.total_changes
            self._db.executemany(
                "INSERT OR IGNORE INTO triples (s, r, o) VALUES (?, ?, ?)",
                [(ids[s], relation_ids[r], ids[o]) for s, r, o in triples],
            )
            return self._db.total_changes - before

    def _names(self, table: str, names: list[str]) -> tuple[dict[str, int], list[str]]:
        """Ids of names, after the unknown ones were inserted, and the list of those."""
        last = self._db.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()[0]
        self._db.executemany(f"INSERT OR IGNORE INTO {table} (name) VALUES (?)", [(name,) for name in names])
        select = f"SELECT t.name, t.id FROM json_each(?) j JOIN {table} t ON t.name = j.value"
        ids = dict(self._db.execute(select, (json.dumps(names, ensure_ascii=False),)))
        return ids, [name for name in names if ids[name] > last]

    # Reading

    def query(
        self, entity: F32, relation: F32, tau_e: float, tau_t: float, tau_r: float, *, objects: bool = True
    ) -> list[PeerHit]:
        """Answers for one pair of unit vectors, best first. `objects`: objects are asked, else subjects."""
        return self._join(
            self._cut(self._entities, entity, self.k, tau_e)[0],
            self._cut(self._relations, relation, self.relation_k, tau_t)[0],
            tau_r,
            objects,
        )

    def query_many(
        self, entities: F32, relations: F32, tau_e: float, tau_t: float, tau_r: float, objects: Iterable[bool]
    ) -> list[list[PeerHit]]:
        """`query` for n rows of vectors, both nearest-neighbour searches done for all rows in one call."""
        found = self._cut(self._entities, entities, self.k, tau_e)
        kinds = self._cut(self._relations, relations, self.relation_k, tau_t)
        return [self._join(c, t, tau_r, way) for c, t, way in zip(found, kinds, objects, strict=True)]

    def query_per_pair(
        self, entity: F32, relation: F32, tau_e: float, tau_t: float, tau_r: float, *, objects: bool = True
    ) -> list[PeerHit]:
        """`query` with one statement for each pair of candidates, as the published implementation does."""
        known, other = ("s", "o") if objects else ("o", "s")
        select = _PAIR.format(open=other, known=known)
        hits = []
        kinds = self._cut(self._relations, relation, self.relation_k, tau_t)[0]
        for e, es in self._cut(self._entities, entity, self.k, tau_e)[0].items():
            for t, ts in kinds.items():
                if (es + ts) / 2 >= tau_r - SLACK:
                    rows = self._db.execute(select, (e, t))
                    hits += [PeerHit(name, (es + ts) / 2, triple_id) for triple_id, name in rows]
        hits.sort(key=lambda hit: (-hit.score, hit.triple_id))
        return hits

    # The calls of the published server, for peers/reference_rpc.py.

    def find_entity(self, vector: F32, tau: float) -> dict[int, float]:
        """The ids of the entities that are near, with their similarities."""
        return self._cut(self._entities, vector, self.k, tau)[0]

    def find_relation(self, vector: F32, tau: float) -> dict[int, float]:
        """The same for relations."""
        return self._cut(self._relations, vector, self.relation_k, tau)[0]

    def find_pair(self, entity: int, relation: int, objects: bool) -> list[tuple[int, str]]:
        """(triple id, name) of the facts of an entity and a relation."""
        known, other = ("s", "o") if objects else ("o", "s")
        return list(self._db.execute(_PAIR.format(open=other, known=known), (entity, relation)))

    @staticmethod
    def _cut(graph: hnswlib.Index, vectors: F32, k: int, tau: float) -> list[dict[int, float]]:
        """For each row: ids of the k nearest that reach tau, with their similarities."""
        labels, distances = graph.knn_query(vectors, k=min(k, graph.get_current_count()))
        similarities = 1.0 - distances
        counts = (similarities >= tau - SLACK).sum(axis=1)  # each row comes sorted, nearest first
        return [
            dict(zip(row[:n].tolist(), values[:n].tolist(), strict=True))
            for row, values, n in zip(labels, similarities, counts, strict=True)
        ]

    def _join(
        self, found: dict[int, float], kinds: dict[int, float], tau_r: float, objects: bool
    ) -> list[PeerHit]:
        """Triples of the candidates whose mean similarity passes, best first, ties by id."""
        floor = 2 * (tau_r - SLACK)
        pairs = [(e, t, (a + b) / 2) for e, a in found.items() for t, b in kinds.items() if a + b >= floor]
        if not pairs:
            return []
        known, other = ("s", "o") if objects else ("o", "s")
        if len(pairs) <= _MAX_VALUES:
            select = (
                f"WITH c (e, t, score) AS (VALUES {','.join(['(?,?,?)'] * len(pairs))}) "
                f"SELECT n.name, c.score, t.id FROM c CROSS JOIN triples t ON t.{known} = c.e AND t.r = c.t "
                f"CROSS JOIN entities n ON n.id = t.{other}"
            )
            hits = [PeerHit(*row) for row in self._db.execute(select, [x for pair in pairs for x in pair])]
        else:
            entities = list(dict.fromkeys(e for e, _, _ in pairs))
            relations = list(dict.fromkeys(t for _, t, _ in pairs))
            select = (
                f"SELECT n.name, t.{known}, t.r, t.id FROM triples t CROSS JOIN entities n "
                f"ON n.id = t.{other} WHERE t.{known} IN ({','.join('?' * len(entities))}) "
                f"AND t.r IN ({','.join('?' * len(relations))})"
            )
            rows = self._db.execute(select, entities + relations)
            hits = [
                PeerHit(n, (found[e] + kinds[t]) / 2, i)
                for n, e, t, i in rows
                if found[e] + kinds[t] >= floor
            ]
        hits.sort(key=lambda hit: (-hit.score, hit.triple_id))
        return hits

    def triple(self, triple_id: int) -> tuple[str, str, str]:
        """The names of a triple."""
        row = self._db.execute(
            "SELECT s.name, r.name, o.name FROM triples t JOIN entities s ON s.id = t.s "
            "JOIN relations r ON r.id = t.r JOIN entities o ON o.id = t.o WHERE t.id = ?",
            (triple_id,),
        ).fetchone()
        return (row[0], row[1], row[2])

    def save(self, folder: str) -> int:
        """Write the tables and both graphs into a folder; the bytes that they take there."""
        paths = [os.path.join(folder, name) for name in ("triples.db", "entities.hnsw", "relations.hnsw")]
        target = sqlite3.connect(paths[0])
        self._db.backup(target)
        target.close()
        self._entities.save_index(paths[1])
        self._relations.save_index(paths[2])
        return sum(os.path.getsize(path) for path in paths)
