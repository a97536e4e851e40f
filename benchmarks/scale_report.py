"""The results page of scale.py: Markdown from its JSON."""

from __future__ import annotations

from typing import Any

import report

# What a row shows, its key, how it is written.
_ROWS = [
    ("import, M triples a CPU-second", lambda r: r["read"] / r["cpu_s"] / 1e6, ".2f"),
    ("import, wall s", lambda r: r["wall_s"], ".1f"),
    ("peak anonymous memory, MB", lambda r: r["anonymous_bytes"] / 1e6, ",.0f"),
    ("peak file-backed memory, MB", lambda r: r["file_bytes"] / 1e6, ",.0f"),
    ("bytes a triple on disk", lambda r: r["disk_bytes"] / r["triples"], ".1f"),
    ("bytes a triple with rule keys", lambda r: r["ruled_disk_bytes"] / r["triples"], ".1f"),
    ("entities", lambda r: r["entities"], ",.0f"),
    ("open, ms", lambda r: r["open_s"] * 1e3, ".1f"),
    ("`<s, r, *>`, µs mean (C++, warm)", lambda r: r["s_r_any_mean_us"], ".2f"),
    ("`<*, r, o>` capped at 30, µs mean", lambda r: r["any_r_o_cap_30_mean_us"], ".2f"),
    ("contains, µs mean", lambda r: r["contains_mean_us"], ".2f"),
    ("name to id, µs mean", lambda r: r["name_to_id_mean_us"], ".2f"),
    ("cold lookup, µs mean / p99 (Python)", lambda r: (r["cold_mean_us"], r["cold_p99_us"]), ",.0f"),
    ("durable writes/s, 1,000 a commit", lambda r: r["write_1000_per_s"], ",.0f"),
    ("durable writes/s, 100,000 a commit", lambda r: r["write_100000_per_s"], ",.0f"),
    ("rows merged", lambda r: r["merged_rows"], ",.0f"),
    ("merge, CPU-s", lambda r: r["merge_cpu_s"], ".1f"),
    ("slowest of the reads meanwhile, ms", lambda r: r["slowest_read_ms"], ".1f"),
    ("rule keys, CPU-s", lambda r: r["rules_cpu_s"], ".1f"),
    ("names embedded a CPU-second", lambda r: r["embed_per_cpu_s"], ",.0f"),
    ("names embedded a second", lambda r: r["embed_per_s"], ",.0f"),
    ("thresholded query, ms mean", lambda r: r["query_mean_ms"], ".1f"),
]
_VECTOR_BYTES = 4 * 256


def machine() -> dict[str, str]:
    """Where and with what this ran."""
    return report.machine(1)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _cell(fn: Any, result: dict[str, Any], form: str) -> str:
    try:
        value = fn(result)
    except KeyError:
        return "–"
    return " / ".join(format(v, form) for v in (value if isinstance(value, tuple) else (value,)))


def page(results: dict[str, Any]) -> str:
    """All tables."""
    sizes = [results["sizes"][key] for key in sorted(results["sizes"], key=int)]
    parts = [
        "# Scale\n",
        f"Command: `{results['command']}`\n",
        ", ".join(f"{k}: {v}" for k, v in results["machine"].items()) + f", SQLite {results['sqlite']}\n",
    ]
    if sizes:
        head = ["", *(f"{r['count']:,}" for r in sizes)]
        parts.append(_table(head, [[what, *(_cell(fn, r, form) for r in sizes)] for what, fn, form in _ROWS]))
        parts.append(
            "\n## Vectors: of entities and relations, or one a proposition (the paper's Figure 4)\n\n"
            "256 float32 each.\n"
        )
        rows = []
        for r in sizes:
            names, propositions = r["entities"] + r["relations"], r["triples"]
            gigabytes = (f"{n * _VECTOR_BYTES / 1e9:.2f}" for n in (names, propositions))
            counts = (f"{n:,}" for n in (r["count"], names, propositions))
            rows.append([*counts, *gigabytes, f"{propositions / names:.1f}"])
        head = ["triples", "names", "propositions", "GB of names", "GB of propositions", "ratio"]
        parts.append(_table(head, rows))
    if results["peers"]:
        parts.append(
            "\n## Peers, the same triples in one run\n\n"
            "Ratios: theirs / ours of CPU time, wall time, bytes.\n"
        )
        rows = []
        for key in sorted(results["peers"], key=int):
            run = results["peers"][key]
            ours = run["ours"]
            for name in ("ours", "sqlite_best", "sqlite_reference", "oxigraph"):
                if name not in run:
                    continue
                peer = run[name]
                own = f"{peer['own_cpu_s'] / ours['cpu_s']:.1f}" if "own_cpu_s" in peer else "–"
                ratios = [f"{peer[k] / ours[k]:.1f}" for k in ("cpu_s", "wall_s", "disk_bytes")]
                times = [f"{peer['cpu_s']:.1f}", f"{peer['wall_s']:.1f}"]
                each = f"{peer['disk_bytes'] / peer['triples']:.1f}"
                rows.append([f"{run['count']:,}", name, *times, each, ratios[0], own, *ratios[1:]])
        head = [
            "triples",
            "",
            "CPU-s",
            "wall s",
            "bytes a triple",
            "CPU ratio",
            "SQLite's own",
            "wall ratio",
            "bytes ratio",
        ]
        parts.append(_table(head, rows))
    return "\n".join(parts) + "\n"


def plot(results: dict[str, Any], path: str) -> None:
    """The paper's Figure 4, and how the rates change with the size, as SVG. Needs matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "pymemstore"
    from matplotlib import pyplot

    sizes = [results["sizes"][key] for key in sorted(results["sizes"], key=int)]
    counts = [r["triples"] / 1e6 for r in sizes]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for label, style, value in (
        (
            "vectors of entities and relations",
            "o-",
            lambda r: (r["entities"] + r["relations"]) * _VECTOR_BYTES,
        ),
        ("one a proposition", "s--", lambda r: r["triples"] * _VECTOR_BYTES),
        ("the store without vectors", "^:", lambda r: r["disk_bytes"]),
    ):
        left.plot(counts, [value(r) / 1e9 for r in sizes], style, label=label)
    left.set(xscale="log", yscale="log", xlabel="million triples", ylabel="GB")
    left.legend()
    for label, style, value in (
        ("import, a CPU-second", "o-", lambda r: r["read"] / r["cpu_s"]),
        ("durable writes, 1,000 a commit", "s--", lambda r: r["write_1000_per_s"]),
        ("durable writes, 100,000 a commit", "^:", lambda r: r["write_100000_per_s"]),
    ):
        right.plot(counts, [value(r) / 1e6 for r in sizes], style, label=label)
    right.set(xscale="log", xlabel="million triples", ylabel="million triples a second", ylim=(0, None))
    right.legend()
    figure.savefig(path, metadata={"Date": None})
