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
    const NameTable& table = snapshot.gen->names[0];
    NameRecord record;
    for (NameId id = 0; names.size() < most && table.NextUnembedded(snapshot.txn.get(), snapshot.counters.sealed, &id); ++id)
      if (table.Get(snapshot.txn.get(), id, &record)) names.push_back({id, std::string(record.name)});
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
    uint64_t done = 0;
    for (size_t i = 0; i < names.size() && txn->ok(); ++i) {
      NameRecord record;
      // Renamed, forgotten or embedded in the meantime: the next call sees to it.
      if (!table.Get(txn, names[i].id, &record) || record.row_plus_1 || record.name != names[i].name) continue;
      VectorFile::Encode(vectors.data() + i * kSurfaceDim, kSurfaceDim, names[i].id, &rows);
      counters.embedded[0] += table.SetRow(txn, names[i].id, counters.rows[0]++);
      ++done;
    }
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
