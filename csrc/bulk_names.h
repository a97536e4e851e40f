// What the names and keys of a bulk import are in the store: known ones get their ids, new ones the next, and keys
// their names. The rule for labels that several keys share is in docs/import.md.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "bulk_sink.h"
#include "store_impl.h"

namespace pymemstore {

class BulkNames {
 public:
  using Ref = FactSink::Ref;
  BulkNames(Kind kind, StagedNames* names, const StagedNotes* notes, Snapshot* old, bool update)
      : kind_(kind), names_(*names), notes_(*notes), old_(*old), table_(old->gen->names[Index(kind)]), update_(update) {}

  Status Resolve(const InterruptCheck& interrupted);
  NameId id(Ref ref) const { return ids_[ref]; }
  uint64_t new_count() const { return new_count_; }
  // New names in order of id; the keys' external ids, redirected ones too; (id, new name) of known ones.
  Status ForEachNew(const std::function<Status(NameId id, Bytes name)>& fn) const;
  Status ForEachKey(const std::function<Status(Bytes key, NameId id)>& fn) const;
  const std::vector<std::pair<NameId, std::string>>& renames() const { return renames_; }
  uint64_t redirects() const { return redirects_; }
  uint64_t redirect_loops() const { return loops_; }

 private:
  Status ReadNotes();
  void FollowRedirects();
  Status NameKeys(const InterruptCheck& interrupted);
  void NameGroup(const std::vector<Ref>& group);
  bool TakenInStore(Bytes name, NameId except);
  std::string Suffixed(Bytes label, Bytes key, NameId except);
  // The name that a ref would have if nobody else wanted it, and has in the end.
  Bytes Wanted(Ref ref) const;
  Bytes Final(Ref ref) const;
  Bytes Text(Ref ref, bool* key) const { return names_.Text(offsets_[ref], key); }
  bool IsKey(Ref ref) const;

  const Kind kind_;
  StagedNames& names_;
  const StagedNotes& notes_;
  Snapshot& old_;
  const NameTable& table_;
  const bool update_;
  std::vector<NameId> ids_;
  std::vector<uint64_t> offsets_;    // of the staged texts; only when there are keys
  std::vector<uint64_t> labels_;     // offset + 1 of a key's best label; only when there are notes
  std::unordered_map<Ref, Ref> same_as_;       // redirected keys, names that are a key's label
  std::unordered_map<Ref, std::string> named_;  // keys whose name is neither their label nor the key
  std::unordered_set<std::string> parenthesised_;  // labels that a suffixed name might meet
  std::vector<std::pair<NameId, std::string>> renames_;
  NameId first_new_ = 0;
  uint64_t new_count_ = 0, redirects_ = 0, loops_ = 0;
};

}  // namespace pymemstore
