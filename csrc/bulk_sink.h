// The staging end of a bulk import: what readers say becomes staged names, triples and notes.
#pragma once

#include <array>
#include <string>

#include "name_table.h"
#include "staging.h"

namespace pymemstore {

class BulkSink : public FactSink {
 public:
  // Files below `dir` are cut back to the state.
  Status Open(const std::string& dir, const StagedState& state, uint64_t memory);
  // What triples wait in the group is looked up; then their texts are not needed any more.
  Status Flush();
  Status Sync();
  void Fill(StagedState* state) const;
  // Of calls that have no result of their own.
  const Status& status() const { return status_; }

  Result<Ref> Name(Kind kind, std::string_view name) override;
  Result<Ref> Key(Kind kind, std::string_view external_id) override;
  void Fact(Ref subject, Ref relation, Ref object) override;
  Status Triple(std::string_view subject, std::string_view relation, std::string_view object) override;
  void Label(Kind kind, Ref ref, std::string_view label, uint32_t rank) override;
  void Alias(Kind kind, Ref ref, std::string_view alias) override;
  void Redirect(Kind kind, Ref from, Ref to) override;
  void Whole(Ref subject) override;

  StagedNames& names(Kind kind) { return names_[Index(kind)]; }
  StagedTriples& triples() { return triples_; }
  const StagedTriples& triples() const { return triples_; }
  StagedNotes& notes() { return notes_; }
  std::map<std::string, uint64_t>& counts() { return counts_; }  // what it had to leave out

 private:
  struct Waiting {
    std::string_view s, r, o;
    uint64_t s_hash, o_hash;
  };
  static constexpr size_t kGroup = 64, kSlotsAhead = 16;
  void PrefetchTexts(const Waiting& w) const {
    names_[0].PrefetchText(w.s_hash);
    names_[0].PrefetchText(w.o_hash);
  }
  void AddNote(NoteType type, Kind kind, Ref ref, uint32_t number, std::string_view text);
  Status FlushGroup();

  StagedNames names_[kKinds];
  StagedTriples triples_;
  StagedNotes notes_;
  std::array<Waiting, kGroup> waiting_;
  size_t waiting_count_ = 0;
  // Input is often grouped by subject, and by relation within it.
  std::string last_subject_, last_relation_;
  Ref last_subject_ref_ = 0, last_relation_ref_ = 0;
  std::map<std::string, uint64_t> counts_;
  Status status_;
};

}  // namespace pymemstore
