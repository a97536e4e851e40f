#include "graph.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "chunk_runner.h"
#include "graph_format.h"
#include "simd_kernels.h"

namespace pymemstore {
namespace {

constexpr size_t kFetchAhead = 4;

// Bounds and scores of rows, from their int8 codes.
struct Scorer {
  const SealedCodes& codes;
  const CodedQuery& q;
  const size_t stride = WholeStride(codes.dim()), padded = stride - 8;

  void Dots(const uint32_t* rows, size_t n, int32_t* dots) const {
    ActiveKernels().dot_codes(codes.whole_rows(), stride, padded, rows, n, q.codes2.data(), dots);
  }
  void Of(uint32_t row, int32_t dot, float* score, bool* reaches, double limit) const {
    float about[2];
    std::memcpy(about, codes.whole(row) + padded, sizeof about);
    const double product = q.scale2 * static_cast<double>(about[0]) * dot;
    const double error = static_cast<double>(about[1]);
    *score = static_cast<float>(product);
    *reaches = !(product + q.slack2 * (codes.meta().max_norm + error) + q.norm * error + 1e-9 < limit);
  }
};

}  // namespace

// The frontier of a search: unexpanded nodes, best first, and the scores of the best `kGraphBeam` seen.
struct Graph::Beam {
  struct Node {
    float score;
    uint32_t row;
    bool operator<(const Node& o) const { return score < o.score; }
  };
  std::vector<Node> open;
  std::vector<float> best;  // a heap, the worst first
  float within;             // the threshold: nodes above it are expanded however many there are

  float Least() const { return best.size() < kGraphBeam ? -HUGE_VALF : std::min(within, best.front()); }
  void Add(float score, uint32_t row) {
    if (best.size() < kGraphBeam) {
      best.push_back(score);
      std::push_heap(best.begin(), best.end(), std::greater<>());
    } else if (score > best.front()) {
      std::pop_heap(best.begin(), best.end(), std::greater<>());
      best.back() = score;
      std::push_heap(best.begin(), best.end(), std::greater<>());
    }
    open.push_back({score, row});
    std::push_heap(open.begin(), open.end());
  }
};

Result<std::shared_ptr<const Graph>> Graph::Open(const std::string& path, const DerivedStamp& stamp,
                                                 std::shared_ptr<const SealedCodes> codes) {
  PMS_ASSIGN_OR_RETURN(std::shared_ptr<const DerivedFile> file, DerivedFile::Open(path, stamp, DerivedType::kGraph));
  std::shared_ptr<Graph> graph(new Graph(std::move(file), std::move(codes)));
  PMS_RETURN_IF_ERROR(graph->Load());
  return std::shared_ptr<const Graph>(std::move(graph));
}

Status Graph::Load() {
  const GraphMeta* meta = file_->Array<GraphMeta>(kGraphMeta, 1);
  if (file_->sections() != kGraphSections || meta == nullptr || !file_->SectionIsWhole(kGraphMeta))
    return Status::Corruption(file_->path() + " is damaged: its numbers don't fit");
  links_ = file_->Array<uint32_t>(kGraphLinksLow, file_->rows() * kLinkWords);
  upper_ = file_->Array<uint32_t>(kGraphUpper, meta->upper);
  twins_ = file_->Array<uint32_t>(kGraphTwins, 2 * meta->twins);
  missed_ = file_->Array<uint32_t>(kGraphMissed, meta->missed);
  if (!links_ || !upper_ || !twins_ || !missed_ || meta->entry >= file_->rows() || file_->rows() > codes_->rows() ||
      meta->top_level > 64)
    return Status::Corruption(file_->path() + " is damaged: a section has another length than it must");
  entry_ = meta->entry;
  top_level_ = meta->top_level;
  upper_size_ = meta->upper;
  twin_count_ = meta->twins;
  missed_count_ = meta->missed;
  return Status::Ok();
}

std::unique_ptr<Graph::Visited> Graph::Borrow() const {
  std::unique_ptr<Visited> visited;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      visited = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!visited) {
    visited = std::make_unique<Visited>();
    visited->tags.assign(file_->rows(), 0);
  }
  if (++visited->tag == 0) {
    std::fill(visited->tags.begin(), visited->tags.end(), uint16_t{0});
    visited->tag = 1;
  }
  return visited;
}

void Graph::GiveBack(std::unique_ptr<Visited> visited) const {
  std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(visited));
}

// Numbers out of a damaged file never lead out of the arrays: links to rows that are not there are left out.
void Graph::Walk(const CodedQuery& q, double limit, std::vector<uint32_t>* found, ScanStats* stats) const {
  const Scorer scorer{*codes_, q};
  const uint32_t rows = static_cast<uint32_t>(file_->rows());
  int32_t dots[2 * kGraphLinks];
  uint32_t list[2 * kGraphLinks];
  float score;
  bool reaches;
  uint32_t current = entry_;
  scorer.Dots(&current, 1, dots);
  scorer.Of(current, dots[0], &score, &reaches, limit);
  float current_score = score;
  bool current_reaches = reaches;
  for (uint32_t level = top_level_; level > 0; --level) {
    for (bool moved = true; moved;) {
      moved = false;
      const uint64_t place = links_[static_cast<size_t>(current) * kLinkWords];
      const uint64_t at = place + static_cast<uint64_t>(level - 1) * kUpperWords;
      if (place == kNoRow || at + kUpperWords > upper_size_) break;
      size_t n = 0;
      for (uint32_t i = 0; i < std::min(upper_[at], kGraphLinks); ++i)
        if (upper_[at + 1 + i] < rows) list[n++] = upper_[at + 1 + i];
      scorer.Dots(list, n, dots);
      stats->rows_scanned += n;
      for (size_t i = 0; i < n; ++i) {
        scorer.Of(list[i], dots[i], &score, &reaches, limit);
        if (score > current_score) {
          current = list[i];
          current_score = score;
          current_reaches = reaches;
          moved = true;
        }
      }
    }
  }
  std::unique_ptr<Visited> visited = Borrow();
  uint16_t* tags = visited->tags.data();
  const uint16_t tag = visited->tag;
  Beam beam;
  beam.within = static_cast<float>(limit);
  tags[current] = tag;
  beam.Add(current_score, current);
  if (current_reaches) found->push_back(current);
  while (!beam.open.empty()) {
    const Beam::Node top = beam.open.front();
    if (top.score < beam.Least()) break;
    std::pop_heap(beam.open.begin(), beam.open.end());
    beam.open.pop_back();
    const uint32_t* record = links_ + static_cast<size_t>(top.row) * kLinkWords;
    const uint32_t count = std::min(record[1], 2 * kGraphLinks);
    for (uint32_t i = 0; i < count; ++i)
      if (record[2 + i] < rows) __builtin_prefetch(tags + record[2 + i]);
    size_t n = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t row = record[2 + i];
      if (row >= rows || tags[row] == tag) continue;
      tags[row] = tag;
      const char* p = reinterpret_cast<const char*>(codes_->whole(row));
      for (size_t b = 0; b < scorer.stride; b += 64) __builtin_prefetch(p + b);
      list[n++] = row;
    }
    scorer.Dots(list, n, dots);
    stats->rows_scanned += n;
    for (size_t i = 0; i < n; ++i) {
      scorer.Of(list[i], dots[i], &score, &reaches, limit);
      if (reaches) found->push_back(list[i]);
      if (reaches || !(score < beam.Least())) beam.Add(score, list[i]);
    }
    if (!beam.open.empty()) __builtin_prefetch(links_ + static_cast<size_t>(beam.open.front().row) * kLinkWords);
  }
  GiveBack(std::move(visited));
}

Status Graph::Search(const RowView& view, const float* queries, size_t n, const double* taus, int threads,
                     const std::function<bool()>& interrupted, std::vector<std::vector<ScoredRow>>* out,
                     ScanStats* stats) const {
  PMS_RETURN_IF_ERROR(codes_->WithinThreshold(view, queries, n, taus, kGraphSoftness, threads, interrupted, out, stats));
  if (n == 0) return Status::Ok();
  const size_t helpers = std::min(static_cast<size_t>(std::max(threads, 1)), n) - 1;
  std::vector<ScanStats> walked(helpers + 1);
  PMS_RETURN_IF_ERROR(RunChunks(n, helpers, interrupted, [&](size_t worker, uint64_t i) {
    std::vector<ScoredRow>& rows = (*out)[i];
    SearchNodes(view, queries + i * view.dim, taus[i], &rows, &walked[worker]);
    std::sort(rows.begin(), rows.end(), [](const ScoredRow& a, const ScoredRow& b) { return a.row < b.row; });
    const auto same = [](const ScoredRow& a, const ScoredRow& b) { return a.row == b.row; };
    rows.erase(std::unique(rows.begin(), rows.end(), same), rows.end());
    return Status::Ok();
  }));
  for (const ScanStats& w : walked) {
    stats->rows_scanned += w.rows_scanned;
    stats->rows_rescored += w.rows_rescored;
  }
  return Status::Ok();
}

void Graph::SearchNodes(const RowView& view, const float* query, double tau, std::vector<ScoredRow>* out,
                        ScanStats* stats) const {
  const CodedQuery q = CodeWholeQuery(query, view.dim);
  const double limit = tau - kScoreSlack;
  std::vector<uint32_t> found;
  Walk(q, limit, &found, stats);
  const Scorer scorer{*codes_, q};
  std::vector<uint32_t> missed(missed_, missed_ + missed_count_);  // what no search reaches
  const auto outside = [&](uint32_t row) { return row >= file_->rows(); };
  missed.erase(std::remove_if(missed.begin(), missed.end(), outside), missed.end());
  std::vector<int32_t> dots(missed.size());
  scorer.Dots(missed.data(), missed.size(), dots.data());
  stats->rows_scanned += missed.size();
  for (size_t i = 0; i < missed.size(); ++i) {
    float score;
    bool reaches;
    scorer.Of(missed[i], dots[i], &score, &reaches, limit);
    if (reaches) found.push_back(missed[i]);
  }
  const size_t nodes = found.size();
  const Twin* twins = reinterpret_cast<const Twin*>(twins_);
  for (size_t i = 0; i < nodes; ++i) {
    const Twin* at = std::lower_bound(twins, twins + twin_count_, found[i],
                                      [](const Twin& t, uint32_t row) { return t.node < row; });
    for (; at != twins + twin_count_ && at->node == found[i]; ++at) found.push_back(at->row);
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  for (size_t i = 0; i < found.size(); ++i) {
    if (i + kFetchAhead < found.size() && found[i + kFetchAhead] < view.rows) {
      const uint8_t* next = reinterpret_cast<const uint8_t*>(view.row(found[i + kFetchAhead]));
      for (size_t at = 0; at < view.dim * sizeof(float); at += 64) __builtin_prefetch(next + at);
    }
    if (found[i] >= view.rows) continue;
    const double canonical = ActiveKernels().canonical_dot(query, view.row(found[i]), view.dim);
    ++stats->rows_rescored;
    if (canonical >= limit) out->push_back({found[i], canonical});
  }
}

}  // namespace pymemstore
