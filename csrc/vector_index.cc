#include "vector_index.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <new>

namespace pymemstore {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(500);  // for files that another process sealed

}  // namespace

std::shared_ptr<VectorIndex::State> VectorIndex::Current(bool look_again) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (state_ && !look_again && now - looked_ < kLookEvery) return state_;
  looked_ = now;
  const std::string codes_path = DerivedPath(store_, stamp_, DerivedType::kCodes);
  const std::string graph_path = DerivedPath(store_, stamp_, DerivedType::kGraph);
  const FileMark codes_mark = MarkOf(codes_path), graph_mark = MarkOf(graph_path);
  if (state_ && state_->codes_mark == codes_mark && state_->graph_mark == graph_mark) return state_;
  auto fresh = std::make_shared<State>(file_->dim());
  fresh->codes_mark = codes_mark;
  fresh->graph_mark = graph_mark;
  if (codes_mark.exists()) {
    auto codes = SealedCodes::Open(codes_path, stamp_);
    if (codes.ok()) {
      fresh->problem = OtherRows(**codes, false);
      if (fresh->problem.empty()) fresh->codes = *codes;
    } else if (codes.status().code() != Code::kNotFound) {
      fresh->problem = codes.status().message();
    }
  }
  if (graph_mark.exists() && fresh->codes) {
    auto graph = Graph::Open(graph_path, stamp_, fresh->codes);
    if (graph.ok() && (*graph)->rows() == fresh->codes->rows()) {
      fresh->graph = *graph;
    } else if (graph.ok()) {
      fresh->note = "the graph lacks " + std::to_string(fresh->codes->rows() - (*graph)->rows()) +
                    " of the sealed rows and is not used: reindex with a graph";
    } else if (graph.status().code() != Code::kNotFound) {
      fresh->problem = graph.status().message();
    }
  }
  state_ = std::move(fresh);
  return state_;
}

// A copy of a store that went its own way has the same stamp, and other rows behind some row.
std::string VectorIndex::OtherRows(const SealedCodes& codes, bool all) {
  constexpr uint64_t kSome = 64;
  auto rows = file_->Rows(codes.rows());
  if (!rows.ok()) return codes.file().path() + " covers more rows than the vector file has";
  const uint64_t count = all ? codes.rows() : std::min(kSome, codes.rows());
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t row = all ? i : (codes.rows() - 1) * (i + 1) / count;  // the last one too
    if (!codes.IsOf(row, rows->view.row(row))) return codes.file().path() + " is of other vectors";
  }
  return {};
}

SearchChoice VectorIndex::Choose(const State& state, SearchMode asked, size_t n, const double* taus) const {
  if (asked == SearchMode::kExact) return {SearchMode::kExact, "asked for"};
  if (!state.graph) return {SearchMode::kExact, "there is no graph"};
  if (asked == SearchMode::kGraph) return {SearchMode::kGraph, "asked for"};
  double expected = 0;
  for (size_t i = 0; i < n; ++i) expected += cost_.Exact(state.codes->rows(), dim(), n, taus[i]) / static_cast<double>(n);
  char reason[128];
  std::snprintf(reason, sizeof reason, "an exact search is expected to take %.3g ms a query; %.3g are taken", expected * 1e3,
                SearchCost::kPatience * 1e3);
  return {expected > SearchCost::kPatience ? SearchMode::kGraph : SearchMode::kExact, reason};
}

Result<SearchChoice> VectorIndex::WithinThreshold(const PinnedRows& rows, const float* queries, size_t n,
                                                  const double* taus, SearchMode asked, int threads,
                                                  const InterruptCheck& interrupted,
                                                  std::vector<std::vector<ScoredRow>>* out, ScanStats* stats) {
  const std::shared_ptr<State> state = Current(false);
  const uint64_t sealed = state->codes ? std::min(state->codes->rows(), rows.view.rows) : 0;
  RowView tail = rows.view;
  tail.base += sealed * tail.stride;
  tail.rows -= sealed;
  if (sealed == 0) {
    PMS_RETURN_IF_ERROR(state->tail.WithinThreshold(tail, queries, n, taus, threads, interrupted, out, stats));
    return SearchChoice{SearchMode::kExact, state->codes ? "no sealed rows are visible" : "no rows are sealed"};
  }
  try {
    std::vector<std::vector<ScoredRow>> newer;
    PMS_RETURN_IF_ERROR(state->tail.WithinThreshold(tail, queries, n, taus, threads, interrupted, &newer, stats));
    out->assign(n, {});
    const SearchChoice choice = Choose(*state, asked, n, taus);
    if (choice.mode == SearchMode::kGraph) {
      PMS_RETURN_IF_ERROR(state->graph->Search(rows.view, queries, n, taus, threads, interrupted, out, stats));
    } else {
      const auto began = std::chrono::steady_clock::now();
      PMS_RETURN_IF_ERROR(state->codes->WithinThreshold(rows.view, queries, n, taus, 1, threads, interrupted, out, stats));
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
      if (n > 0) cost_.Learn(state->codes->rows(), dim(), n, taus[0], took.count() / static_cast<double>(n));
    }
    for (size_t i = 0; i < n; ++i)
      for (const ScoredRow& row : newer[i]) (*out)[i].push_back({row.row + sealed, row.score});
    return choice;
  } catch (const std::bad_alloc&) {
    return Status::IOError("search: out of memory");
  }
}

namespace {

// Empty: whole, or not there.
std::string DamageOf(const DerivedFile* file) {
  for (size_t s = 0; file != nullptr && s < file->sections(); ++s)
    if (!file->SectionIsWhole(s)) return file->path() + " is damaged: a checksum does not fit";
  return {};
}

}  // namespace

Status VectorIndex::Reindex(const PinnedRows& rows, const ReindexOptions& options, int threads,
                            const BuildProgress& progress, const InterruptCheck& interrupted) {
  if (rows.view.rows < kMinSealedRows) return Status::Ok();
  std::shared_ptr<State> state = Current(true);
  if (options.force || !state->codes || state->codes->rows() != rows.view.rows ||
      !DamageOf(&state->codes->file()).empty()) {
    PMS_RETURN_IF_ERROR(SealCodes(rows.view, DerivedPath(store_, stamp_, DerivedType::kCodes), stamp_, threads, progress,
                                  interrupted));
    state = Current(true);
  }
  if (!state->codes) return Status::Ok();
  const std::string graph_path = DerivedPath(store_, stamp_, DerivedType::kGraph);
  if (!options.graph) {
    // A graph that only lacks rows stays: nothing is wrong with it.
    const bool refused = state->graph_mark.exists() && !state->graph && state->note.empty();
    if (refused || !DamageOf(state->graph ? &state->graph->file() : nullptr).empty()) {
      if (::unlink(graph_path.c_str()) != 0 && errno != ENOENT) return ErrnoStatus("cannot remove", graph_path, errno);
      (void)Current(true);
    }
    return Status::Ok();
  }
  if (!options.force && state->graph && DamageOf(&state->graph->file()).empty()) return Status::Ok();
  PMS_RETURN_IF_ERROR(BuildGraph(rows.view, state->codes, graph_path, stamp_, threads, progress, interrupted));
  (void)Current(true);
  return Status::Ok();
}

IndexInfo VectorIndex::Info() {
  const std::shared_ptr<State> state = Current(true);
  IndexInfo info;
  info.problem = state->problem.empty() ? state->note : state->problem;
  if (!state->codes) return info;
  info.sealed_rows = state->codes->rows();
  info.bits1 = state->codes->meta().bits1;
  info.bits2 = state->codes->meta().bits2;
  info.clusters = state->codes->meta().clusters;
  if (!state->graph) return info;
  info.graph_rows = state->graph->rows();
  info.missed = state->graph->missed();
  return info;
}

std::string VectorIndex::CheckFiles() {
  const std::shared_ptr<State> state = Current(true);
  if (!state->problem.empty()) return state->problem;
  std::string damage = DamageOf(state->codes ? &state->codes->file() : nullptr);
  if (damage.empty() && state->codes) damage = OtherRows(*state->codes, true);
  return !damage.empty() ? damage : DamageOf(state->graph ? &state->graph->file() : nullptr);
}

}  // namespace pymemstore
