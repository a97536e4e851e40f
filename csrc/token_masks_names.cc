// Sorted names, and sets of them that change.
#include <algorithm>
#include <cstring>

#include "pymemstore/token_masks.h"

namespace pymemstore {
namespace {

constexpr uint32_t kBlock = 16;  // names whose least length is kept
constexpr size_t kMaxText = UINT32_MAX;
// The delta is merged into the base when it has more than so many names and more than 1/16 of the base's.
constexpr size_t kLeastMerge = 4096;

uint64_t Head(std::string_view name) {
  uint64_t head = 0;
  for (size_t i = 0; i < 8; ++i) head = head << 8 | (i < name.size() ? static_cast<uint8_t>(name[i]) : 0);
  return head;
}

// The places of `names` in byte order. Equal heads are rare, so that most comparisons touch no text.
std::vector<uint32_t> SortedOrder(const std::vector<std::string_view>& names) {
  std::vector<std::pair<uint64_t, uint32_t>> keys(names.size());
  for (uint32_t i = 0; i < names.size(); ++i) keys[i] = {Head(names[i]), i};
  std::sort(keys.begin(), keys.end(), [&](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first < b.first;
    const int c = names[a.second].compare(names[b.second]);
    return c ? c < 0 : a.second < b.second;
  });
  std::vector<uint32_t> order(names.size());
  for (size_t i = 0; i < keys.size(); ++i) order[i] = keys[i].second;
  return order;
}

Status TooMuch() { return Status::InvalidArgument("the names take more than 4 GiB as written"); }

}  // namespace

// ---- NameIndex ----

void NameIndex::Append(std::string_view name) {
  starts_.push_back(static_cast<uint32_t>(text_.size()));
  text_ += name;
}

void NameIndex::Finish() {
  end_ = static_cast<uint32_t>(text_.size());
  text_.shrink_to_fit();
  starts_.shrink_to_fit();
  heads_.reserve(size());
  for (uint32_t i = 0; i < size(); ++i) heads_.push_back(Head(name(i)));
  for (uint32_t i = 0; i < size(); i += kBlock) {
    uint32_t least = UINT32_MAX;
    for (uint32_t k = i; k < std::min(size(), i + kBlock); ++k) least = std::min(least, Length(k));
    least_.push_back(least);
  }
}

Result<std::shared_ptr<const NameIndex>> NameIndex::Make(const std::vector<std::string>& names) {
  std::shared_ptr<NameIndex> index(new NameIndex);
  std::vector<std::string_view> views(names.begin(), names.end());
  size_t bytes = 0;
  for (const std::string_view name : views) {
    if (name.empty()) return Status::InvalidArgument("a name is empty");
    bytes += name.size();
  }
  if (bytes > kMaxText) return TooMuch();
  index->text_.reserve(bytes);
  index->starts_.reserve(views.size());
  std::string_view last;
  for (const uint32_t i : SortedOrder(views)) {
    if (views[i] == last) continue;
    index->Append(last = views[i]);
  }
  index->Finish();
  return std::shared_ptr<const NameIndex>(std::move(index));
}

Result<std::shared_ptr<const NameIndex>> NameIndex::Merge(const NameIndex& a, const std::vector<uint32_t>& without,
                                                          const NameIndex& b) {
  std::shared_ptr<NameIndex> index(new NameIndex);
  if (a.text_.size() + b.text_.size() > kMaxText) return TooMuch();
  index->text_.reserve(a.text_.size() + b.text_.size());
  index->starts_.reserve(a.size() + b.size());
  auto gone = without.begin();
  uint32_t i = 0, k = 0;
  while (i < a.size() || k < b.size()) {
    if (gone != without.end() && i == *gone) {
      ++gone;
      ++i;
    } else if (k == b.size()) {
      index->Append(a.name(i++));
    } else if (i == a.size()) {
      index->Append(b.name(k++));
    } else {
      const int c = a.name(i).compare(b.name(k));
      if (c <= 0) index->Append(a.name(i++));
      else index->Append(b.name(k));
      if (c >= 0) ++k;
    }
  }
  index->Finish();
  return std::shared_ptr<const NameIndex>(std::move(index));
}

Result<std::shared_ptr<const NameIndex>> NameIndex::MakeSpans(std::string text, const std::vector<uint32_t>& starts,
                                                              const std::vector<uint32_t>& ends, size_t max_bytes,
                                                              const Vocabulary& vocabulary) {
  std::shared_ptr<NameIndex> index(new NameIndex);
  if (text.size() >= kMaxText) return TooMuch();
  for (const std::vector<uint32_t>* list : {&starts, &ends})
    if (!std::is_sorted(list->begin(), list->end()) || (!list->empty() && list->back() > text.size()))
      return Status::InvalidArgument("starts and ends of words must be ascending offsets in the text");
  index->spans_ = true;
  index->text_ = std::move(text);
  const std::string& all = index->text_;
  index->to_end_.assign(all.size() + 1, UINT32_MAX);
  uint32_t next = UINT32_MAX;
  auto end = ends.rbegin();
  for (size_t at = all.size() + 1; at-- > 0;) {
    if (end != ends.rend() && *end == at) {
      next = static_cast<uint32_t>(at);
      while (end != ends.rend() && *end == at) ++end;
    }
    if (next != UINT32_MAX) index->to_end_[at] = next - static_cast<uint32_t>(at);
  }
  std::vector<uint32_t> lengths, kept;
  std::vector<std::string_view> suffixes;
  for (const uint32_t start : starts) {
    std::string_view reach = std::string_view(all).substr(start, max_bytes);
    if (const size_t stop = reach.find('\0'); stop != std::string_view::npos) reach = reach.substr(0, stop);
    reach = reach.substr(0, vocabulary.SpelledPrefix(reach));
    const auto last = std::upper_bound(ends.begin(), ends.end(), start + reach.size());
    if (last == ends.begin() || last[-1] <= start) continue;
    suffixes.push_back(reach.substr(0, last[-1] - start));
    kept.push_back(start);
  }
  for (const uint32_t i : SortedOrder(suffixes)) {
    index->starts_.push_back(kept[i]);
    index->lengths_.push_back(static_cast<uint32_t>(suffixes[i].size()));
  }
  return std::shared_ptr<const NameIndex>(std::move(index));
}

uint32_t NameIndex::LowerBound(NameRange range, uint32_t depth, int byte) const {
  uint32_t lo = range.lo, hi = range.hi;
  while (lo < hi) {
    const uint32_t mid = lo + (hi - lo) / 2;
    if (ByteAt(mid, depth) < byte) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

uint32_t NameIndex::RunEnd(NameRange range, uint32_t depth) const {
  const int byte = ByteAt(range.lo, depth);
  uint32_t lo = range.lo + 1, step = 1;
  while (lo < range.hi && ByteAt(lo, depth) == byte) {
    if (range.hi - lo <= step) return LowerBound({lo + 1, range.hi}, depth, byte + 1);
    if (ByteAt(lo + step, depth) != byte) return LowerBound({lo + 1, lo + step}, depth, byte + 1);
    lo += step;
    step *= 2;
  }
  return lo;
}

NameRange NameIndex::Step(NameRange range, uint32_t depth, uint8_t byte) const {
  if (range.size() == 1) return ByteAt(range.lo, depth) == byte ? range : NameRange{};
  const uint32_t lo = LowerBound(range, depth, byte);
  if (lo == range.hi || ByteAt(lo, depth) != byte) return {};
  return {lo, RunEnd({lo, range.hi}, depth)};
}

uint32_t NameIndex::ToEnd(NameRange range, uint32_t depth) const {
  uint32_t least = UINT32_MAX;
  if (spans_) {
    for (uint32_t i = range.lo; i < range.hi && least; ++i) {
      const uint32_t at = starts_[i] + depth;
      least = std::min(least, depth ? to_end_[at] : 1 + to_end_[at + 1]);
    }
    return least;
  }
  uint32_t i = range.lo;
  while (i < range.hi) {
    if (i % kBlock == 0 && range.hi - i >= kBlock) {
      least = std::min(least, least_[i / kBlock]);
      i += kBlock;
    } else {
      least = std::min(least, Length(i++));
    }
  }
  return least == UINT32_MAX ? least : least - depth;
}

bool NameIndex::Ends(NameRange range, uint32_t depth) const {
  if (range.empty() || depth == 0) return false;
  if (spans_) return ToEnd(range, depth) == 0;
  return Length(range.lo) == depth;
}

uint32_t NameIndex::Find(std::string_view name) const {
  uint32_t lo = 0, hi = size();
  while (lo < hi) {
    const uint32_t mid = lo + (hi - lo) / 2;
    if (this->name(mid) < name) lo = mid + 1;
    else hi = mid;
  }
  return lo < size() && this->name(lo) == name ? lo : size();
}

size_t NameIndex::memory() const {
  return text_.capacity() + 8 * heads_.capacity() + 
         4 * (starts_.capacity() + lengths_.capacity() + to_end_.capacity() + least_.capacity());
}

// ---- NameView ----

NameView::NameView(std::shared_ptr<const NameIndex> base, std::vector<uint32_t> removed,
                   std::shared_ptr<const NameIndex> delta)
    : base_(std::move(base)), delta_(std::move(delta)), removed_(std::move(removed)) {}

bool NameView::Live(NameRange range) const {
  if (range.empty() || removed_.empty()) return !range.empty();
  const auto from = std::lower_bound(removed_.begin(), removed_.end(), range.lo);
  const auto upto = std::lower_bound(from, removed_.end(), range.hi);
  return static_cast<size_t>(upto - from) < range.size();
}

bool NameView::Step(Cursor* cursor, uint8_t byte) const {
  NameRange base, delta;
  if (!cursor->base.empty()) base = base_->Step(cursor->base, cursor->depth, byte);
  if (!cursor->delta.empty()) delta = delta_->Step(cursor->delta, cursor->depth, byte);
  if (!Live(base)) base = {};
  if (base.empty() && delta.empty()) return false;
  *cursor = {base, delta, cursor->depth + 1};
  return true;
}

uint32_t NameView::ToEnd(const Cursor& cursor) const {
  uint32_t least = cursor.delta.empty() ? UINT32_MAX : delta_->ToEnd(cursor.delta, cursor.depth);
  NameRange rest = cursor.base;
  auto gone = std::lower_bound(removed_.begin(), removed_.end(), rest.lo);
  for (; gone != removed_.end() && *gone < rest.hi; ++gone) {
    if (rest.lo < *gone) least = std::min(least, base_->ToEnd({rest.lo, *gone}, cursor.depth));
    rest.lo = *gone + 1;
  }
  return rest.empty() ? least : std::min(least, base_->ToEnd(rest, cursor.depth));
}

bool NameView::Ends(const Cursor& cursor) const {
  if (delta_->Ends(cursor.delta, cursor.depth)) return true;
  return base_->Ends(cursor.base, cursor.depth) &&
         (removed_.empty() || !std::binary_search(removed_.begin(), removed_.end(), cursor.base.lo));
}

bool NameView::MidCharacter(const Cursor& cursor) const {
  const int byte = cursor.base.empty() ? delta_->ByteAt(cursor.delta.hi - 1, cursor.depth)
                                       : base_->ByteAt(cursor.base.hi - 1, cursor.depth);
  return byte >= 0x80 && byte < 0xc0;
}

Result<std::shared_ptr<const NameView>> NameView::Spelled(const Vocabulary& vocabulary) const {
  std::vector<std::string> kept;
  auto gone = removed_.begin();
  for (uint32_t i = 0; i < base_->size(); ++i) {
    if (gone != removed_.end() && *gone == i) ++gone;
    else if (vocabulary.Spells(base_->name(i))) kept.emplace_back(base_->name(i));
  }
  for (uint32_t i = 0; i < delta_->size(); ++i)
    if (vocabulary.Spells(delta_->name(i))) kept.emplace_back(delta_->name(i));
  PMS_ASSIGN_OR_RETURN(std::shared_ptr<const NameIndex> base, NameIndex::Make(kept));
  PMS_ASSIGN_OR_RETURN(std::shared_ptr<const NameIndex> delta, NameIndex::Make({}));
  return std::make_shared<const NameView>(std::move(base), std::vector<uint32_t>(), std::move(delta));
}

// ---- NameSet ----

NameSet::NameSet() : NameSet(*NameIndex::Make({})) {}

NameSet::NameSet(std::shared_ptr<const NameIndex> base)
    : view_(std::make_shared<const NameView>(std::move(base), std::vector<uint32_t>(), *NameIndex::Make({}))) {}

std::shared_ptr<const NameView> NameSet::view() const {
  std::lock_guard<std::mutex> lock(mu_);
  return view_;
}

Status NameSet::Update(const std::vector<std::string>& added, const std::vector<std::string>& removed) {
  std::lock_guard<std::mutex> updating(update_mu_);
  const std::shared_ptr<const NameView> old = view();
  const NameIndex &base = old->base(), &delta = old->delta();
  std::vector<uint32_t> out = old->removed(), out_of_delta;
  for (const std::string& name : removed) {
    if (const uint32_t i = base.Find(name); i < base.size()) out.push_back(i);
    if (const uint32_t i = delta.Find(name); i < delta.size()) out_of_delta.push_back(i);
  }
  std::vector<uint32_t> back;
  std::vector<std::string> fresh;
  for (const std::string& name : added) {
    if (const uint32_t i = base.size() ? base.Find(name) : 0; i < base.size()) back.push_back(i);
    else fresh.push_back(name);
  }
  for (std::vector<uint32_t>* list : {&out, &out_of_delta, &back}) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  out.erase(std::remove_if(out.begin(), out.end(),
                           [&](uint32_t i) { return std::binary_search(back.begin(), back.end(), i); }),
            out.end());
  PMS_ASSIGN_OR_RETURN(const std::shared_ptr<const NameIndex> more, NameIndex::Make(fresh));
  PMS_ASSIGN_OR_RETURN(std::shared_ptr<const NameIndex> next, NameIndex::Merge(delta, out_of_delta, *more));
  std::shared_ptr<const NameIndex> below = old->base_;
  const size_t changes = out.size() + next->size();
  if (changes > kLeastMerge && changes > base.size() / 16) {
    PMS_ASSIGN_OR_RETURN(below, NameIndex::Merge(base, out, *next));
    PMS_ASSIGN_OR_RETURN(next, NameIndex::Make({}));
    out.clear();
  }
  auto view = std::make_shared<const NameView>(std::move(below), std::move(out), std::move(next));
  std::lock_guard<std::mutex> lock(mu_);
  view_ = std::move(view);
  return Status::Ok();
}

}  // namespace pymemstore
