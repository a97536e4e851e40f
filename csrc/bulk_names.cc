#include "bulk_names.h"

#include <algorithm>

namespace pymemstore {

bool BulkNames::IsKey(Ref ref) const {
  bool key = false;
  if (!offsets_.empty()) (void)Text(ref, &key);
  return key;
}

Bytes BulkNames::Wanted(Ref ref) const {
  if (!labels_.empty() && labels_[ref]) return notes_.At(labels_[ref] - 1).text;
  bool key = false;
  return Text(ref, &key);
}

Bytes BulkNames::Final(Ref ref) const {
  const auto it = named_.find(ref);
  return it == named_.end() ? Wanted(ref) : Bytes(it->second);
}

Status BulkNames::Resolve(const InterruptCheck& interrupted) {
  Txn* txn = old_.txn.get();
  const uint64_t count = names_.count();
  ids_.assign(count, kNoName);
  first_new_ = static_cast<NameId>(old_.counters.next_name[Index(kind_)]);
  bool keys = false;
  PMS_RETURN_IF_ERROR(names_.ForEach([&](Ref, Bytes, bool key) {
    keys = keys || key;
    return Status::Ok();
  }));
  if (keys) {
    offsets_ = names_.Offsets();
    PMS_RETURN_IF_ERROR(ReadNotes());
    FollowRedirects();
    PMS_RETURN_IF_ERROR(NameKeys(interrupted));
  }
  const bool known = old_.counters.live[Index(kind_)] > 0;
  uint64_t next = first_new_;
  PMS_RETURN_IF_ERROR(names_.ForEach([&](Ref ref, Bytes text, bool) -> Status {
    if (ref % 65536 == 0 && interrupted && interrupted()) return Status::Interrupted();
    if (ids_[ref] != kNoName || (!same_as_.empty() && same_as_.count(ref))) return Status::Ok();
    const Bytes name = keys ? Final(ref) : text;
    NameId id = kNoName;
    if (known && table_.Find(txn, name, &id)) {
      ids_[ref] = id;
    } else if (next >= kNoName - 1) {
      return Status::InvalidArgument(std::string("the store cannot hold so many ") + KindName(kind_) + " names");
    } else {
      ids_[ref] = static_cast<NameId>(next++);
    }
    return txn->status();
  }));
  new_count_ = next - first_new_;
  for (const auto& [from, to] : same_as_) {
    Ref target = to;
    for (auto it = same_as_.find(target); it != same_as_.end(); it = same_as_.find(target)) target = it->second;
    ids_[from] = ids_[target];
  }
  return txn->status();
}

Status BulkNames::ReadNotes() {
  if (!notes_.bytes()) return Status::Ok();
  labels_.assign(names_.count(), 0);
  return notes_.ForEach([&](const Note& note) {
    if (note.kind != kind_) return Status::Ok();
    if (note.type == NoteType::kRedirect && note.ref != note.number) same_as_.emplace(note.ref, note.number);
    if (note.type != NoteType::kLabel) return Status::Ok();
    uint64_t& at = labels_[note.ref];
    bool better = at == 0;
    if (at) {
      const Note best = notes_.At(at - 1);
      better = note.number != best.number ? note.number < best.number : note.text < best.text;
    }
    if (better) at = note.offset + 1;
    return Status::Ok();
  });
}

// Chains stay chains; a ring is cut, so that its keys are what they are.
void BulkNames::FollowRedirects() {
  std::vector<Ref> in_ring;
  for (const auto& entry : same_as_) {
    Ref at = entry.second;
    size_t steps = 0;
    for (auto it = same_as_.find(at); it != same_as_.end() && at != entry.first && steps <= same_as_.size(); ++steps) {
      at = it->second;
      it = same_as_.find(at);
    }
    if (at == entry.first || steps > same_as_.size()) in_ring.push_back(entry.first);
  }
  for (Ref ref : in_ring) same_as_.erase(ref);
  loops_ = in_ring.size();
  redirects_ = same_as_.size();
}

// Whether another entity of the store, with an external id, has the name. (One without was added by its name, so it
// is the one that is meant.)
bool BulkNames::TakenInStore(Bytes name, NameId except) {
  NameId id = kNoName;
  if (!old_.counters.live[Index(kind_)] || !table_.Find(old_.txn.get(), name, &id) || id == except) return false;
  return !table_.ExternalIds(old_.txn.get(), id).empty();
}

std::string BulkNames::Suffixed(Bytes label, Bytes key, NameId except) {
  std::string name(label);
  NameId id = kNoName;
  Ref ref = 0;
  do {
    name.append(" (").append(key).append(")");
  } while (names_.Find(name, false, &ref) || parenthesised_.count(name) ||
           (old_.counters.live[Index(kind_)] && table_.Find(old_.txn.get(), name, &id) && id != except));
  return name;
}

Status BulkNames::NameKeys(const InterruptCheck& interrupted) {
  Txn* txn = old_.txn.get();
  // By hash of the wanted name, so that those who want the same stand together.
  std::vector<std::pair<uint64_t, Ref>> wanted;
  const bool known = old_.counters.live[Index(kind_)] > 0;
  for (Ref ref = 0; ref < offsets_.size(); ++ref) {
    if (ref % 65536 == 0 && interrupted && interrupted()) return Status::Interrupted();
    if (same_as_.count(ref)) continue;
    bool key = false;
    const Bytes text = Text(ref, &key);
    const Bytes want = Wanted(ref);
    if (key && known && table_.ByExternalId(txn, text, &ids_[ref]) && !(update_ && want != text)) continue;
    wanted.emplace_back(NameHash(old_.gen->store_id, want), ref);
    if (key && want.size() > 2 && want.back() == ')') parenthesised_.emplace(want);
  }
  std::sort(wanted.begin(), wanted.end());
  for (size_t i = 0; i < wanted.size();) {
    size_t end = i + 1;
    while (end < wanted.size() && wanted[end].first == wanted[i].first) ++end;
    // Those of one hash, text by text.
    std::vector<Ref> rest;
    for (size_t j = i; j < end; ++j) rest.push_back(wanted[j].second);
    while (!rest.empty()) {
      const Bytes text = Wanted(rest[0]);
      const auto others = std::stable_partition(rest.begin(), rest.end(), [&](Ref ref) { return Wanted(ref) == text; });
      NameGroup(std::vector<Ref>(rest.begin(), others));
      rest.erase(rest.begin(), others);
    }
    i = end;
  }
  return txn->status();
}

void BulkNames::NameGroup(const std::vector<Ref>& group) {
  std::vector<std::pair<Bytes, Ref>> keys;
  Ref plain = 0;
  bool has_plain = false;
  for (Ref ref : group) {
    bool key = false;
    const Bytes text = Text(ref, &key);
    if (key) {
      keys.emplace_back(text, ref);
    } else {
      plain = ref;
      has_plain = true;
    }
  }
  if (keys.empty()) return;
  // Whose key is the name itself, then the shortest and smallest: the lowest number, for Q42 and the like.
  const Bytes text = Wanted(group[0]);
  std::sort(keys.begin(), keys.end(), [&](const auto& a, const auto& b) {
    if ((a.first == text) != (b.first == text)) return a.first == text;
    return a.first.size() != b.first.size() ? a.first.size() < b.first.size() : a.first < b.first;
  });
  bool free = true;
  for (const auto& [key, ref] : keys) {
    Ref other = 0;
    const bool anothers_key = text != key && names_.Find(text, true, &other);
    std::string name(text);
    if (!free || anothers_key || TakenInStore(text, ids_[ref])) {
      name = Suffixed(text, key, ids_[ref]);
      named_.emplace(ref, name);
    } else {
      free = false;
      if (has_plain) same_as_.emplace(plain, ref);
    }
    if (ids_[ref] == kNoName) continue;
    NameRecord record;
    if (table_.Get(old_.txn.get(), ids_[ref], &record) && record.name != name) renames_.emplace_back(ids_[ref], name);
  }
}

Status BulkNames::ForEachNew(const std::function<Status(NameId, Bytes)>& fn) const {
  uint64_t next = first_new_;
  return names_.ForEach([&](Ref ref, Bytes text, bool) {
    if (ids_[ref] != next || (!same_as_.empty() && same_as_.count(ref))) return Status::Ok();
    return fn(static_cast<NameId>(next++), offsets_.empty() ? text : Final(ref));
  });
}

Status BulkNames::ForEachKey(const std::function<Status(Bytes, NameId)>& fn) const {
  if (offsets_.empty()) return Status::Ok();
  return names_.ForEach([&](Ref ref, Bytes text, bool key) { return key ? fn(text, ids_[ref]) : Status::Ok(); });
}

}  // namespace pymemstore
