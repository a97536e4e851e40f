// A sealed HNSW graph over the int8 rows of a codes file: mapped, shared between processes, approximate. It is
// searched together with the codes at a softness: what the one misses the other mostly finds.
// hnswlib (Malkov and Yashunin, arXiv 1603.09320) builds it; the search is a beam that never lets go of what lies
// within the threshold.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "sealed_codes.h"

namespace pymemstore {

constexpr uint32_t kGraphLinks = 16;           // hnswlib's M; twice as many on the lowest level
constexpr uint32_t kGraphConstruction = 200;   // width of the beam while building
constexpr uint32_t kGraphBeam = 32;            // and of a search, where nothing is within the threshold yet
// What is searched beside the graph: the codes, at this softness or more.
constexpr double kGraphSoftness = 0.7;

class Graph {
 public:
  // As SealedCodes::Open. The graph must have been made of these codes' rows, or of the first of them.
  static Result<std::shared_ptr<const Graph>> Open(const std::string& path, const DerivedStamp& stamp,
                                                   std::shared_ptr<const SealedCodes> codes);

  uint64_t rows() const { return file_->rows(); }
  const DerivedFile& file() const { return *file_; }
  uint64_t missed() const { return missed_count_; }  // rows that neither part finds by their own vector

  // For each of n queries, rows below view.rows with a canonical score >= taus[i] - kScoreSlack, ascending: those that
  // the beam or the codes come by, and of those that neither finds by their own vector all.
  Status Search(const RowView& view, const float* queries, size_t n, const double* taus, int threads,
                const std::function<bool()>& interrupted, std::vector<std::vector<ScoredRow>>* out,
                ScanStats* stats) const;
  // The rows of the nodes that the beam comes by whose bound reaches `limit`.
  void Walk(const CodedQuery& q, double limit, std::vector<uint32_t>* found, ScanStats* stats) const;

 private:
  struct Visited {
    std::vector<uint16_t> tags;
    uint16_t tag = 0;
  };
  struct Beam;
  void SearchNodes(const RowView& view, const float* query, double tau, std::vector<ScoredRow>* out,
                   ScanStats* stats) const;
  Graph(std::shared_ptr<const DerivedFile> file, std::shared_ptr<const SealedCodes> codes)
      : file_(std::move(file)), codes_(std::move(codes)) {}
  Status Load();
  std::unique_ptr<Visited> Borrow() const;
  void GiveBack(std::unique_ptr<Visited> visited) const;

  std::shared_ptr<const DerivedFile> file_;
  std::shared_ptr<const SealedCodes> codes_;
  uint32_t entry_ = 0, top_level_ = 0;
  const uint32_t* links_ = nullptr;   // [rows][2 + 2 kGraphLinks]: place of the upper links, number of links, links
  const uint32_t* upper_ = nullptr;   // at each place: levels x [number of links, kGraphLinks links]
  uint64_t upper_size_ = 0;
  const uint32_t* twins_ = nullptr;   // [twin_count][2]: (row of a node, another row of the same codes), ascending
  uint64_t twin_count_ = 0;
  const uint32_t* missed_ = nullptr;
  uint64_t missed_count_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Visited>> idle_;  // guarded by mutex_
};

// Builds the graph of all rows of `codes`, which were made of `view`. Phases: "linking", "finding". What is linked is saved now and then beside
// `path`, and an interrupted build goes on from there. Once the file is in place, what was saved goes.
Status BuildGraph(const RowView& view, std::shared_ptr<const SealedCodes> codes, const std::string& path,
                  const DerivedStamp& stamp, int threads, const std::function<void(const char*, uint64_t, uint64_t)>& progress,
                  const std::function<bool()>& interrupted);

}  // namespace pymemstore
