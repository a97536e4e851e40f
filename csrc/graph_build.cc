// Builds the file that graph.cc reads. The sole includer of hnswlib.
#include <hnswlib/hnswlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string_view>

#include "chunk_runner.h"
#include "distance.h"
#include "graph_format.h"
#include "simd_kernels.h"

namespace pymemstore {
namespace {

using Progress = std::function<void(const char*, uint64_t, uint64_t)>;
using Hnsw = hnswlib::HierarchicalNSW<float>;

constexpr uint64_t kPiece = 4096;  // nodes between two moments at which a build may be saved
constexpr auto kSaveEvery = std::chrono::seconds(60);

// Inner products of int8 rows: one minus the product of codes and scales.
class CodeSpace : public hnswlib::SpaceInterface<float> {
 public:
  explicit CodeSpace(uint32_t dim) : padded_(WholeStride(dim) - 8) {}
  size_t get_data_size() override { return padded_ + 8; }
  hnswlib::DISTFUNC<float> get_dist_func() override { return &Distance; }
  void* get_dist_func_param() override { return &padded_; }

 private:
  static float Distance(const void* a, const void* b, const void* param) {
    const size_t padded = *static_cast<const size_t*>(param);
    const int8_t *x = static_cast<const int8_t*>(a), *y = static_cast<const int8_t*>(b);
    float sx, sy;
    std::memcpy(&sx, x + padded, sizeof sx);
    std::memcpy(&sy, y + padded, sizeof sy);
    return 1.0F - static_cast<float>(ActiveKernels().dot_int8(x, y, padded)) * sx * sy;
  }
  size_t padded_;
};

// Rows that stand for all rows of the same codes, and the others.
void FindTwins(const RowView& view, const SealedCodes& codes, std::vector<uint32_t>* nodes,
               std::vector<Twin>* twins) {
  const uint32_t rows = static_cast<uint32_t>(codes.rows());
  const size_t compared = WholeStride(codes.dim()) - sizeof(float);  // codes and scale
  const auto text = [&](uint32_t row) {
    return std::string_view(reinterpret_cast<const char*>(codes.whole(row)), compared);
  };
  std::vector<std::pair<uint64_t, uint32_t>> hashed;
  hashed.reserve(rows);
  for (uint32_t i = 0; i < rows; ++i) {
    if (!(std::sqrt(CanonicalDot(view.row(i), view.row(i), view.dim)) <= kMostRowNorm)) continue;
    hashed.emplace_back(std::hash<std::string_view>()(text(i)), i);
  }
  std::sort(hashed.begin(), hashed.end());
  for (size_t i = 0; i < hashed.size();) {
    size_t end = i + 1;
    while (end < hashed.size() && hashed[end].first == hashed[i].first) ++end;
    std::vector<uint32_t> different;  // of one hash; nearly always one
    for (; i < end; ++i) {
      const uint32_t row = hashed[i].second;
      const auto same = std::find_if(different.begin(), different.end(), [&](uint32_t d) { return text(d) == text(row); });
      if (same != different.end()) {
        twins->push_back({*same, row});
      } else {
        different.push_back(row);
        nodes->push_back(row);
      }
    }
  }
  std::sort(twins->begin(), twins->end());
  // In an order that tells nothing, and the same each time: neighbours in the file may be alike.
  std::sort(nodes->begin(), nodes->end(), [](uint32_t a, uint32_t b) {
    const uint32_t x = a * 2654435761u, y = b * 2654435761u;
    return x != y ? x < y : a < b;
  });
}

class Builder {
 public:
  Builder(const RowView& view, std::shared_ptr<const SealedCodes> codes, const std::string& path,
          const DerivedStamp& stamp, int threads, const Progress& progress, const std::function<bool()>& interrupted)
      : view_(view), codes_(std::move(codes)), path_(path), stamp_(stamp), threads_(std::max(threads, 1)),
        progress_(progress), interrupted_(interrupted), space_(codes_->dim()) {}

  Status Run() {
    FindTwins(view_, *codes_, &nodes_, &twins_);
    if (nodes_.empty()) return Status::Corruption(path_ + ": no vector holds numbers only");
    graph_ = std::make_unique<Hnsw>(&space_, nodes_.size(), kGraphLinks, kGraphConstruction);
    uint64_t done = 0;
    PMS_RETURN_IF_ERROR(Resume(&done));
    auto saved = std::chrono::steady_clock::now();
    while (done < nodes_.size()) {
      if (progress_) progress_("linking", done, nodes_.size());
      // The first nodes alone: threads that find an empty graph would not link to each other.
      const uint64_t piece = done == 0 ? 1 : std::min<uint64_t>(kPiece, nodes_.size() - done);
      const uint64_t chunk_nodes = 64, chunks = (piece + chunk_nodes - 1) / chunk_nodes;
      const Status status = RunChunks(chunks, static_cast<size_t>(threads_ - 1), {}, [&](size_t, uint64_t chunk) {
        const uint64_t end = std::min(piece, (chunk + 1) * chunk_nodes);
        for (uint64_t i = chunk * chunk_nodes; i < end; ++i)
          graph_->addPoint(codes_->whole(nodes_[done + i]), nodes_[done + i]);
        return Status::Ok();
      });
      PMS_RETURN_IF_ERROR(status);
      done += piece;
      const bool stop = interrupted_ && interrupted_();
      const auto now = std::chrono::steady_clock::now();
      if (stop || now - saved > kSaveEvery) {
        PMS_RETURN_IF_ERROR(Save(done));
        saved = now;
      }
      if (stop) return Status::Interrupted();
    }
    return Finish();
  }

 private:
  std::string PartPath() const { return path_ + ".part"; }

  // What is linked, as hnswlib has it: meta, its lowest level, each node's level, and the links above.
  struct Part {
    uint64_t done, nodes, record;
    int32_t top_level;
    uint32_t entry;
    uint32_t codes_crc, unused;  // the codes must be the same ones
  };
  uint32_t CodesCrc() const {
    return Crc32(Bytes(reinterpret_cast<const char*>(&codes_->meta()), sizeof(CodesMeta)));
  }

  Status Save(uint64_t done) {
    PMS_ASSIGN_OR_RETURN(auto writer, DerivedWriter::Create(PartPath(), stamp_, DerivedType::kPartOfGraph));
    const Part part = {done, nodes_.size(), graph_->size_data_per_element_, graph_->maxlevel_,
                       graph_->enterpoint_node_, CodesCrc(), 0};
    PMS_RETURN_IF_ERROR(writer->Section(&part, sizeof part));
    PMS_RETURN_IF_ERROR(writer->Section(graph_->data_level0_memory_, done * graph_->size_data_per_element_));
    PMS_RETURN_IF_ERROR(writer->Section(graph_->element_levels_.data(), done * sizeof(int)));
    for (uint64_t i = 0; i < done; ++i) {
      const size_t bytes = static_cast<size_t>(graph_->element_levels_[i]) * graph_->size_links_per_element_;
      if (bytes > 0) PMS_RETURN_IF_ERROR(writer->Append(graph_->linkLists_[i], bytes));
    }
    PMS_RETURN_IF_ERROR(writer->EndSection());
    return writer->Finish(codes_->rows());
  }

  // Takes over what an interrupted build saved, if it fits and is whole.
  Status Resume(uint64_t* done) {
    auto opened = DerivedFile::Open(PartPath(), stamp_, DerivedType::kPartOfGraph);
    if (!opened.ok()) return Status::Ok();
    const DerivedFile& file = **opened;
    const Part* part = file.Array<Part>(0, 1);
    if (file.sections() != 4 || part == nullptr || file.rows() != codes_->rows() || part->nodes != nodes_.size() ||
        part->record != graph_->size_data_per_element_ || part->codes_crc != CodesCrc() || part->done > nodes_.size())
      return Status::Ok();
    for (size_t s = 0; s < 4; ++s)
      if (!file.SectionIsWhole(s)) return Status::Ok();
    const char* records = file.Array<char>(1, part->done * part->record);
    const int* levels = file.Array<int>(2, part->done);
    if (records == nullptr || levels == nullptr) return Status::Ok();
    const char* links = file.Section(3).data();
    std::memcpy(graph_->data_level0_memory_, records, part->done * part->record);
    for (uint64_t i = 0; i < part->done; ++i) {
      const size_t bytes = static_cast<size_t>(levels[i]) * graph_->size_links_per_element_;
      graph_->element_levels_[i] = levels[i];
      graph_->linkLists_[i] = nullptr;
      if (bytes > 0) {
        graph_->linkLists_[i] = static_cast<char*>(std::malloc(bytes));
        if (graph_->linkLists_[i] == nullptr) throw std::bad_alloc();
        std::memcpy(graph_->linkLists_[i], links, bytes);
        links += bytes;
      }
      graph_->cur_element_count = i + 1;
      graph_->label_lookup_[graph_->getExternalLabel(static_cast<hnswlib::tableint>(i))] =
          static_cast<hnswlib::tableint>(i);
    }
    graph_->maxlevel_ = part->top_level;
    graph_->enterpoint_node_ = part->entry;
    *done = part->done;
    return Status::Ok();
  }

  Status Finish() {
    const uint32_t rows = static_cast<uint32_t>(codes_->rows());
    std::vector<uint32_t> place(rows, kNoRow), node(rows, kNoRow);
    for (uint32_t i = 0; i < nodes_.size(); ++i) node[Row(i)] = i;
    std::vector<uint32_t> upper;
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      if (graph_->element_levels_[i] == 0) continue;
      place[Row(i)] = static_cast<uint32_t>(upper.size());
      for (int level = 1; level <= graph_->element_levels_[i]; ++level) {
        const size_t at = upper.size();
        upper.resize(at + kUpperWords, 0);
        CopyLinks(graph_->get_linklist(i, level), kGraphLinks, &upper[at]);
      }
    }
    GraphMeta meta;
    meta.entry = Row(graph_->enterpoint_node_);
    meta.top_level = static_cast<uint32_t>(graph_->maxlevel_);
    meta.upper = upper.size();
    meta.twins = twins_.size();
    // Twice: the first file, without the list of what is missed, is searched to find that list.
    std::vector<uint32_t> missed;
    PMS_RETURN_IF_ERROR(Write(meta, node, place, upper, missed));
    {
      PMS_ASSIGN_OR_RETURN(auto made, Graph::Open(path_ + ".found", stamp_, codes_));
      const Status status = FindMissed(*made, &missed);
      if (!status.ok()) {
        ::unlink((path_ + ".found").c_str());
        if (status.code() == Code::kInterrupted) PMS_RETURN_IF_ERROR(Save(nodes_.size()));
        return status;
      }
    }
    graph_.reset();
    meta.missed = missed.size();
    PMS_RETURN_IF_ERROR(Rewrite(meta, missed));
    ::unlink((path_ + ".found").c_str());
    ::unlink(PartPath().c_str());
    return Status::Ok();
  }

  uint32_t Row(uint32_t internal) const { return static_cast<uint32_t>(graph_->getExternalLabel(internal)); }

  void CopyLinks(hnswlib::linklistsizeint* list, uint32_t most, uint32_t* out) const {
    const uint32_t count = std::min<uint32_t>(graph_->getListCount(list), most);
    const hnswlib::tableint* links = reinterpret_cast<const hnswlib::tableint*>(list + 1);
    out[0] = count;
    for (uint32_t i = 0; i < count; ++i) out[1 + i] = Row(links[i]);
  }

  Status Write(const GraphMeta& meta, const std::vector<uint32_t>& node, const std::vector<uint32_t>& place,
               const std::vector<uint32_t>& upper, const std::vector<uint32_t>& missed) {
    PMS_ASSIGN_OR_RETURN(auto writer, DerivedWriter::Create(path_ + ".found", stamp_, DerivedType::kGraph));
    PMS_RETURN_IF_ERROR(writer->Section(&meta, sizeof meta));
    uint32_t record[kLinkWords];
    for (uint32_t row = 0; row < node.size(); ++row) {
      std::memset(record, 0, sizeof record);
      record[0] = place[row];
      if (node[row] != kNoRow) CopyLinks(graph_->get_linklist0(node[row]), 2 * kGraphLinks, record + 1);
      PMS_RETURN_IF_ERROR(writer->Append(record, sizeof record));
    }
    PMS_RETURN_IF_ERROR(writer->EndSection());
    PMS_RETURN_IF_ERROR(writer->Section(upper.data(), upper.size() * sizeof(uint32_t)));
    PMS_RETURN_IF_ERROR(writer->Section(twins_.data(), twins_.size() * sizeof(Twin)));
    PMS_RETURN_IF_ERROR(writer->Section(missed.data(), missed.size() * sizeof(uint32_t)));
    return writer->Finish(codes_->rows());
  }

  // The file with the list of what is missed, from the one without.
  Status Rewrite(const GraphMeta& meta, const std::vector<uint32_t>& missed) {
    PMS_ASSIGN_OR_RETURN(auto found, DerivedFile::Open(path_ + ".found", stamp_, DerivedType::kGraph));
    PMS_ASSIGN_OR_RETURN(auto writer, DerivedWriter::Create(path_, stamp_, DerivedType::kGraph));
    PMS_RETURN_IF_ERROR(writer->Section(&meta, sizeof meta));
    for (size_t s : {kGraphLinksLow, kGraphUpper, kGraphTwins})
      PMS_RETURN_IF_ERROR(writer->Section(found->Section(s).data(), found->Section(s).size()));
    PMS_RETURN_IF_ERROR(writer->Section(missed.data(), missed.size() * sizeof(uint32_t)));
    return writer->Finish(codes_->rows());
  }

  // Every node is asked for by its own vector, as a query would at the highest threshold; a lower one finds more.
  // Those that don't come are listed.
  Status FindMissed(const Graph& graph, std::vector<uint32_t>* missed) {
    std::mutex mutex;
    const uint64_t chunk_nodes = 256;
    const double tau = 1;
    for (uint64_t from = 0; from < nodes_.size(); from += kPiece) {
      if (progress_) progress_("finding", from, nodes_.size());
      const uint64_t piece = std::min<uint64_t>(kPiece, nodes_.size() - from);
      std::vector<uint32_t> left;
      PMS_RETURN_IF_ERROR(RunChunks((piece + chunk_nodes - 1) / chunk_nodes, static_cast<size_t>(threads_ - 1),
                                    interrupted_, [&](size_t, uint64_t chunk) {
        std::vector<uint32_t> found;
        ScanStats stats;
        const uint64_t end = std::min(piece, (chunk + 1) * chunk_nodes);
        for (uint64_t i = from + chunk * chunk_nodes; i < from + end; ++i) {
          found.clear();
          graph.Walk(CodeWholeQuery(view_.row(nodes_[i]), view_.dim), tau - kScoreSlack, &found, &stats);
          if (std::find(found.begin(), found.end(), nodes_[i]) != found.end()) continue;
          std::lock_guard<std::mutex> lock(mutex);
          left.push_back(nodes_[i]);
        }
        return Status::Ok();
      }));
      std::vector<float> queries;
      for (uint32_t row : left) queries.insert(queries.end(), view_.row(row), view_.row(row) + view_.dim);
      std::vector<std::vector<ScoredRow>> found(left.size());
      ScanStats stats;
      PMS_RETURN_IF_ERROR(codes_->WithinThreshold(view_, queries.data(), left.size(),
                                                  std::vector<double>(left.size(), tau).data(), kGraphSoftness, threads_,
                                                  interrupted_, &found, &stats));
      for (size_t i = 0; i < left.size(); ++i) {
        const auto self = [&](const ScoredRow& r) { return r.row == left[i]; };
        if (std::none_of(found[i].begin(), found[i].end(), self)) missed->push_back(left[i]);
      }
    }
    std::sort(missed->begin(), missed->end());
    if (progress_) progress_("finding", nodes_.size(), nodes_.size());
    return Status::Ok();
  }

  const RowView& view_;
  const std::shared_ptr<const SealedCodes> codes_;
  const std::string path_;
  const DerivedStamp stamp_;
  const int threads_;
  const Progress& progress_;
  const std::function<bool()>& interrupted_;
  CodeSpace space_;
  std::vector<uint32_t> nodes_;  // their rows, in the order in which they are linked
  std::vector<Twin> twins_;
  std::unique_ptr<Hnsw> graph_;
};

}  // namespace

Status BuildGraph(const RowView& view, std::shared_ptr<const SealedCodes> codes, const std::string& path,
                  const DerivedStamp& stamp, int threads, const Progress& progress, const std::function<bool()>& interrupted) {
  try {
    return Builder(view, std::move(codes), path, stamp, threads, progress, interrupted).Run();
  } catch (const std::bad_alloc&) {
    return Status::IOError("building a graph: out of memory");
  } catch (const std::exception& error) {  // hnswlib's
    return Status::IOError(std::string("building a graph: ") + error.what());
  }
}

}  // namespace pymemstore
