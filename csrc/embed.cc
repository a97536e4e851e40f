#include "embed.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "pymemstore/surface.h"

namespace pymemstore {

Result<uint64_t> EmbedSurfaceNames(StoreImpl* impl, uint64_t most, int threads, double timeout_s, Sync sync,
                                   const InterruptCheck& interrupted) {
  struct Waiting {
    NameId id;
    std::string name;
  };
  std::vector<Waiting> names;
  {
    PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
    if (snapshot.gen->stamp[0].dim != kSurfaceDim)
      return Status::EmbedderMismatch("the store's entity vectors are of " + Quote(snapshot.gen->stamp[0].name) +
                                      ", not of surf256");
    NameId first = 0;
    if (snapshot.gen->names[0].NextUnembedded(snapshot.txn.get(), snapshot.counters.sealed, &first)) {
      NameCursor c(snapshot.txn.get(), Kind::kEntity);
      for (bool more = c.Seek(first); more && names.size() < most; more = c.Next())
        if (c.record().live() && !c.record().row_plus_1) names.push_back({c.id(), std::string(c.record().name)});
    }
    PMS_RETURN_IF_ERROR(snapshot->status());
  }
  if (names.empty()) return uint64_t{0};

  // No transaction is open while vectors are made.
  std::vector<float> vectors(names.size() * kSurfaceDim);
  constexpr size_t kPiece = 256;
  std::atomic<size_t> next{0};
  auto encode = [&] {
    for (size_t at = next.fetch_add(kPiece); at < names.size(); at = next.fetch_add(kPiece))
      for (size_t i = at; i < std::min(at + kPiece, names.size()); ++i)
        EncodeSurface(names[i].name, vectors.data() + i * kSurfaceDim);
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads && static_cast<size_t>(i) * kPiece < names.size(); ++i) helpers.emplace_back(encode);
  encode();
  for (std::thread& t : helpers) t.join();
  if (interrupted && interrupted()) return Status::Interrupted();

  PMS_ASSIGN_OR_RETURN(WriterLock lock, impl->Lock(timeout_s, interrupted));
  for (;;) {
    PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Write(sync));
    Txn* txn = snapshot.txn.get();
    const NameTable& table = snapshot.gen->names[0];
    VectorFile& file = snapshot.gen->index[0]->file();
    Counters counters = snapshot.counters;
    std::string rows;
    rows.reserve(names.size() * RowStride(kSurfaceDim));
    uint64_t done = 0;
    // Sealed names without a delta record get their rows in runs.
    NameId run_first = 0;
    uint64_t run_row = 0;
    uint32_t run_count = 0;
    struct Run {
      NameId first;
      uint64_t row;
      uint32_t count;
    };
    std::vector<Run> runs;
    std::vector<std::pair<NameId, uint64_t>> others;
    {
      NameCursor c(txn, Kind::kEntity);
      bool more = c.Seek(names[0].id);
      for (size_t i = 0; i < names.size() && txn->ok(); ++i) {
        while (more && c.id() < names[i].id) more = c.Next();
        // Renamed, forgotten or embedded in the meantime: the next call sees to it.
        if (!more || c.id() != names[i].id || !c.record().live() || c.record().row_plus_1 ||
            c.record().name != names[i].name)
          continue;
        VectorFile::Encode(vectors.data() + i * kSurfaceDim, kSurfaceDim, names[i].id, &rows);
        const uint64_t row = counters.rows[0]++;
        ++done;
        if (c.from_delta()) {
          others.emplace_back(names[i].id, row);
        } else if (run_count && run_first + run_count == names[i].id && run_row + run_count == row) {
          ++run_count;
        } else {
          runs.push_back({run_first, run_row, run_count});
          run_first = names[i].id;
          run_row = row;
          run_count = 1;
        }
      }
      runs.push_back({run_first, run_row, run_count});
    }
    // The cursor is gone: writes may move what it stood on.
    for (const Run& run : runs)
      if (run.count) table.SetSealedRows(txn, run.first, run.row, run.count);
    for (const auto& [id, row] : others) (void)table.SetRow(txn, id, row);
    counters.embedded[0] += done;
    Status status = txn->status();
    if (status.ok()) status = file.Write(snapshot.counters.rows[0], rows);
    if (status.ok() && done) status = file.Sync();
    if (status.ok()) {
      txn->Put(Table::kMeta, "counters", EncodeCounters(counters));
      status = txn->Commit();
    }
    if (status.ok()) return done;
    if (!txn->map_full()) return status;
    snapshot.txn.reset();
    PMS_RETURN_IF_ERROR(snapshot.gen->env->Grow());
  }
}

}  // namespace pymemstore
