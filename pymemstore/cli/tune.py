"""`pymemstore tune`: measures thresholds on the user's own store and queries, and draws what came of it."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from pymemstore.cli.common import (
    Embedder,
    ExitCode,
    Json,
    RelationEmbedder,
    StorePath,
    bar,
    err,
    guarded,
    out,
    print_json,
    table,
    text,
)
from pymemstore.errors import InvalidArgument
from pymemstore.memory import open as open_memory
from pymemstore.tune import MOST_CANDIDATES, TAUS, TauRow, Tuning, TuningReport, read_queries

__all__ = ["tune"]

_BAR = 24  # characters


@guarded
def tune(
    store: StorePath,
    queries: Annotated[
        Path | None,
        typer.Option(
            "--queries", metavar="FILE", help='Lines of a query, or a query, a tab and its name; "-": stdin.'
        ),
    ] = None,
    relations: Annotated[
        bool, typer.Option("--relations", help="Measure relation names and tau_t, not entities and tau_e.")
    ] = False,
    sample: Annotated[
        int, typer.Option("--sample", min=1, help="Names to draw where there is no file of queries.")
    ] = 200,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws the same names and slips again.")] = 0,
    tau: Annotated[
        list[float] | None,
        typer.Option(
            "--tau",
            min=-1,
            max=1,
            help="A threshold; may be repeated. Without it .5 to 1 by .05.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Gets a plot; replaced when it exists.")
    ] = None,
    embedder: Embedder = None,
    relation_embedder: RelationEmbedder = None,
    json: Json = False,
) -> None:
    """Measure what each threshold gives on this store, and recommend one. Writes nothing to the store."""
    if plot is not None:
        _check_plot(plot)
    interrupted = False
    asked = None if queries is None else read_queries(queries)
    with open_memory(store, read_only=True, embedder=embedder, relation_embedder=relation_embedder) as memory:
        tuning = Tuning(
            memory, asked, relation=relations, taus=TAUS if tau is None else tau, sample=sample, seed=seed
        )
        try:
            with bar("Asking", tuning.planned, "queries", json) as update:
                tuning.run(lambda done, total: update(done, done))
        except KeyboardInterrupt:
            if not tuning.asked:
                raise
            interrupted = True
        report = tuning.report()
    if plot is not None:
        _plot(report, plot)
    if json:
        print_json(report.to_json())
    else:
        _show(report)
        if plot is not None:
            out().print(text(f"Wrote {plot}."))
    if interrupted:
        err().print(f"Interrupted. {report.asked:,} of {report.planned:,} queries were asked.")
        raise typer.Exit(ExitCode.INTERRUPTED)


# ---- the terminal --------------------------------------------------------------------------------


def _show(report: TuningReport) -> None:
    console = out()
    made = f"names with slips (seed {report.seed})" if report.source == "slips" else "queries"
    console.print(
        text(
            f"{report.names:,} {report.kind} names, {report.embedder}; {report.asked:,} {made}, "
            f"{report.labelled:,} of them with a known answer."
        )
    )
    console.print()
    console.print(_figures(report))
    console.print()
    console.print(_bars(report))
    console.print()
    advice, name = report.recommendation, "tau_t" if report.kind == "relation" else "tau_e"
    chosen = [i for i, row in enumerate(report.rows) if row.tau == advice.tau]
    for i in chosen:
        kinds = ", ".join(f"{s.slip} {s.recall[i]:.0%} of {s.queries}" for s in report.slips)
        if kinds:
            console.print(text(f"Found at {report.rows[i].tau:g} by kind of slip: {kinds}."))
    if report.by_rule is not None:
        console.print(text(f"The core rules find {report.by_rule:.0%} of the names meant, at any threshold."))
    said = "can't tell" if advice.tau is None else f"{advice.tau:g}"
    least = "none measured" if advice.size_tau is None else f"from {advice.size_tau:g} on"
    console.print(text(f"Recommended {name}: {said} (the store's: {report.store_tau:g}).", "bold"))
    console.print(text(f"At most {MOST_CANDIDATES:g} candidates a query on average: {least}."))
    for note in advice.notes:
        console.print(text(f"- {note}"))


def _figures(report: TuningReport) -> Table:
    columns = ["tau", ">cand.", ">median", ">p95", ">max", ">none"]
    if report.labelled:
        columns += [">found", ">(95 %)", ">false"]
    columns += [">exact ms", ">p95"]
    if report.graph_rows:
        columns += [">graph/exact", ">macro", ">graph ms", ">p95"]
    rows = table(*columns)
    for row in report.rows:
        c = row.candidates
        cells = [
            _tau(report, row),
            f"{c.mean:,.1f}",
            f"{c.median:,g}",
            f"{c.p95:,.1f}",
            f"{c.max:,}",
            f"{c.none:.0%}",
        ]
        if row.recall is not None and row.recall_interval is not None and row.false_candidates is not None:
            low, high = row.recall_interval
            cells += [
                f"{row.recall:.1%}",
                f"{low * 100:.0f}-{high * 100:.0f}",
                f"{row.false_candidates:,.1f}",
            ]
        cells += [f"{row.exact.median:.2f}", f"{row.exact.p95:.2f}"] if row.exact else ["", ""]
        if row.graph:
            cells += ["" if share is None else f"{share:.1%}" for share in (row.graph.micro, row.graph.macro)]
            cells += [f"{row.graph.latency.median:.2f}", f"{row.graph.latency.p95:.2f}"]
        rows.add_row(*cells, style="bold" if row.tau == report.recommendation.tau else "")
    return rows


def _bars(report: TuningReport) -> Table:
    """The share found, and candidates on a logarithmic scale."""
    rows = table("tau", *(["found"] if report.labelled else []), "candidates (logarithmic)")
    most = max(math.log1p(row.candidates.mean) for row in report.rows) or 1.0
    for row in report.rows:
        lengths = [] if row.recall is None else [row.recall]
        lengths.append(math.log1p(row.candidates.mean) / most)
        rows.add_row(_tau(report, row), *(_stroke(length) for length in lengths))
    return rows


def _tau(report: TuningReport, row: TauRow) -> str:
    return f"{row.tau:g}" + (" <" if row.tau == report.recommendation.tau else "")


def _stroke(share: float) -> str:
    mark = "█" if "utf" in (getattr(sys.stdout, "encoding", None) or "").lower() else "#"
    return (mark * round(share * _BAR)).ljust(_BAR)


# ---- the plot ------------------------------------------------------------------------------------


def _check_plot(file: Path) -> None:
    """Refuses, before all is measured, a plot that could not be drawn or written."""
    if file.suffix.lower() != ".png":
        raise InvalidArgument(f"the plot is a PNG: {str(file)!r:.200} does not end in .png")
    if not file.absolute().parent.is_dir():
        raise InvalidArgument(f"the plot's folder {str(file.absolute().parent)!r:.200} is not there")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise InvalidArgument('a plot needs matplotlib: pip install "pymemstore[plot]"') from None


def _plot(report: TuningReport, file: Path) -> None:
    """Draws candidates, shares and latency over tau to a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows, taus = report.rows, [row.tau for row in report.rows]
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display
    figure.suptitle(f"{report.names:,} {report.kind} names, {report.asked:,} {report.source}")
    counts, shares, times = figure.subplots(1, 3)
    counts.plot(taus, [row.candidates.mean for row in rows], "o-", label="mean")
    counts.plot(taus, [row.candidates.p95 for row in rows], "s--", label="p95")
    counts.axhline(MOST_CANDIDATES, color="grey", linewidth=0.8)
    counts.set_yscale("symlog", linthresh=1)
    counts.set_ylim(bottom=0)
    counts.set_ylabel("candidates a query")
    if report.labelled:
        shares.plot(taus, [row.recall or 0.0 for row in rows], "o-", label="intended name found")
        ends = [row.recall_interval or (0.0, 0.0) for row in rows]
        shares.fill_between(taus, [low for low, _ in ends], [high for _, high in ends], alpha=0.2)
    shares.plot(taus, [row.candidates.none for row in rows], "s--", label="queries with no candidate")
    graphs = [(row.tau, row.graph.micro) for row in rows if row.graph and row.graph.micro is not None]
    if graphs:
        shares.plot([tau for tau, _ in graphs], [share for _, share in graphs], "^:", label="graph/exact")
    shares.set_ylim(0, 1.02)
    shares.set_ylabel("share")
    for label, marker, medians in (
        ("exact", "o-", [(row.tau, row.exact.median) for row in rows if row.exact]),
        ("graph", "^:", [(row.tau, row.graph.latency.median) for row in rows if row.graph]),
    ):
        if medians:
            times.plot([tau for tau, _ in medians], [ms for _, ms in medians], marker, label=label)
    times.set_ylim(bottom=0)
    times.set_ylabel("ms a search (median)")
    for axes in (counts, shares, times):
        axes.set_xlabel("tau_t" if report.kind == "relation" else "tau_e")
        if report.recommendation.tau is not None:
            axes.axvline(report.recommendation.tau, color="tab:red", linewidth=0.8, label="recommended")
        axes.legend(fontsize="small")
    figure.savefig(file, format="png", dpi=120)
