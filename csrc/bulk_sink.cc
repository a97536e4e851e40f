#include "bulk_sink.h"

namespace pymemstore {

Status BulkSink::Open(const std::string& dir, const StagedState& state, uint64_t memory) {
  static const char* kFiles[kKinds] = {"entities", "relations"};
  for (size_t k = 0; k < kKinds; ++k)
    PMS_RETURN_IF_ERROR(names_[k].Open(dir, kFiles[k], state.name_bytes[k], state.name_count[k], memory));
  PMS_RETURN_IF_ERROR(triples_.Open(dir + "/triples", state.triples));
  return notes_.Open(dir + "/notes", state.note_bytes);
}

Status BulkSink::Triple(std::string_view subject, std::string_view relation, std::string_view object) {
  const auto fits = [](std::string_view name) { return name.size() - 1 < kMaxNameBytes; };  // 1 to the most
  if (!fits(subject) || !fits(relation) || !fits(object)) {
    PMS_RETURN_IF_ERROR(NameTable::CheckName(Kind::kEntity, subject));
    PMS_RETURN_IF_ERROR(NameTable::CheckName(Kind::kRelation, relation));
    PMS_RETURN_IF_ERROR(NameTable::CheckName(Kind::kEntity, object));
  }
  if (waiting_count_ == kGroup) {
    status_ = FlushGroup();
    PMS_RETURN_IF_ERROR(status_);
  }
  Waiting& w = waiting_[waiting_count_++];
  w = {subject, relation, object, names_[0].Hash(subject, false), names_[0].Hash(object, false)};
  names_[0].Prefetch(w.s_hash);
  names_[0].Prefetch(w.o_hash);
  // Its slots come while others are read; so do the texts that those lead to.
  if (waiting_count_ > kSlotsAhead) PrefetchTexts(waiting_[waiting_count_ - 1 - kSlotsAhead]);
  return Status::Ok();
}

Status BulkSink::FlushGroup() {
  const size_t count = waiting_count_;
  waiting_count_ = 0;
  for (size_t i = count > kSlotsAhead ? count - kSlotsAhead : 0; i < count; ++i) PrefetchTexts(waiting_[i]);
  for (size_t i = 0; i < count; ++i) {
    const Waiting& w = waiting_[i];
    if (w.s != last_subject_ || last_subject_.empty()) {
      PMS_RETURN_IF_ERROR(names_[0].Intern(w.s, false, w.s_hash, &last_subject_ref_));
      last_subject_.assign(w.s);
    }
    if (w.r != last_relation_ || last_relation_.empty()) {
      PMS_RETURN_IF_ERROR(names_[1].Intern(w.r, false, names_[1].Hash(w.r, false), &last_relation_ref_));
      last_relation_.assign(w.r);
    }
    Ref object = 0;
    PMS_RETURN_IF_ERROR(names_[0].Intern(w.o, false, w.o_hash, &object));
    PMS_RETURN_IF_ERROR(triples_.Add({last_subject_ref_, last_relation_ref_, object}));
  }
  return Status::Ok();
}

Status BulkSink::Flush() {
  if (waiting_count_ && status_.ok()) status_ = FlushGroup();
  return status_;
}

Status BulkSink::Sync() {
  PMS_RETURN_IF_ERROR(Flush());
  for (StagedNames& names : names_) PMS_RETURN_IF_ERROR(names.Sync());
  PMS_RETURN_IF_ERROR(triples_.Sync());
  return notes_.Sync();
}

void BulkSink::Fill(StagedState* state) const {
  for (size_t k = 0; k < kKinds; ++k) {
    state->name_bytes[k] = names_[k].bytes();
    state->name_count[k] = names_[k].count();
  }
  state->triples = triples_.count();
  state->note_bytes = notes_.bytes();
}

Result<FactSink::Ref> BulkSink::Name(Kind kind, std::string_view name) {
  PMS_RETURN_IF_ERROR(NameTable::CheckName(kind, name));
  Ref ref = 0;
  StagedNames& names = names_[Index(kind)];
  PMS_RETURN_IF_ERROR(names.Intern(name, false, names.Hash(name, false), &ref));
  return ref;
}

Result<FactSink::Ref> BulkSink::Key(Kind kind, std::string_view external_id) {
  if (external_id.empty() || external_id.size() > kMaxExternalIdBytes)
    return Status::InvalidArgument("the external id " + Quote(external_id) + " has " +
                                   std::to_string(external_id.size()) + " bytes; 1 to " +
                                   std::to_string(kMaxExternalIdBytes) + " are allowed");
  Ref ref = 0;
  StagedNames& names = names_[Index(kind)];
  PMS_RETURN_IF_ERROR(names.Intern(external_id, true, names.Hash(external_id, true), &ref));
  return ref;
}

void BulkSink::Fact(Ref subject, Ref relation, Ref object) {
  if (status_.ok()) status_ = triples_.Add({subject, relation, object});
}

void BulkSink::AddNote(NoteType type, Kind kind, Ref ref, uint32_t number, std::string_view text) {
  if (status_.ok()) status_ = notes_.Add(type, kind, ref, number, text);
}

void BulkSink::Label(Kind kind, Ref ref, std::string_view label, uint32_t rank) {
  if (label.empty() || label.size() > kMaxNameBytes) {
    ++counts_["skipped: label empty or too long"];
  } else {
    AddNote(NoteType::kLabel, kind, ref, rank, label);
  }
}
void BulkSink::Alias(Kind kind, Ref ref, std::string_view alias) {
  if (alias.empty() || alias.size() > kMaxNameBytes) {
    ++counts_["skipped: alias empty or too long"];
  } else {
    AddNote(NoteType::kAlias, kind, ref, 0, alias);
  }
}
void BulkSink::Redirect(Kind kind, Ref from, Ref to) { AddNote(NoteType::kRedirect, kind, from, to, {}); }
void BulkSink::Whole(Ref subject) { AddNote(NoteType::kWhole, Kind::kEntity, subject, 0, {}); }

}  // namespace pymemstore
