// The walk of a call's states over a vocabulary, and its guides.
#include "pymemstore/token_masks.h"

#include <algorithm>
#include <cstring>

#include "token_masks_tables.h"

namespace pymemstore {
namespace {

using State = CallGuide::State;
using States = CallGuide::States;

constexpr uint16_t kForbidden = UINT16_MAX;
constexpr size_t kLongWalk = 512;  // nodes; what a longer walk found is kept
constexpr size_t kKept = 256;      // walks
constexpr uint32_t kFewChildren = 8;

}  // namespace

// ---- the walk ----

namespace {

void AddBytes(const NameIndex& index, NameRange range, uint32_t depth, ByteSet* bytes) {
  while (!range.empty()) {
    const int byte = index.ByteAt(range.lo, depth);
    if (byte >= 0) bytes->Add(byte);
    range.lo = index.RunEnd(range, depth);
  }
}

}  // namespace

// The bytes that may follow, or a few more; false: too many to tell.
bool CallTables::Candidates(const States& states, ByteSet* bytes) const {
  for (size_t i = 0; i < states.count; ++i) {
    const State& s = states.at[i];
    if (s.phase == kFree) return false;
    if (s.phase == kHead) {
      bytes->Add(static_cast<uint8_t>(head()[s.literal]));
      if (s.literal == 2) bytes->Add(' ');
    } else if (s.phase == kClose) {
      bytes->Add(static_cast<uint8_t>(close()[s.literal]));
    } else if (s.phase != kDone) {
      for (const char c : {' ', '>', ';', close()[0]}) bytes->Add(c);
    }
    if (s.phase == kSlot && !MustBeEmpty(s) && !names_of(s)) return false;
    if (s.phase != kName && (s.phase != kSlot || MustBeEmpty(s) || !names_of(s))) continue;
    const NameView& view = *names_of(s);
    const NameView::Cursor cursor = s.phase == kName ? s.cursor : view.start();
    AddBytes(view.base(), cursor.base, cursor.depth, bytes);
    AddBytes(view.delta(), cursor.delta, cursor.depth, bytes);
  }
  return true;
}

// The walk's two stacks: nearly all of a walk is inside names, where a state is a cursor.
struct CallTables::Walker {
  struct Frame {
    uint32_t node;
    States states;
  };
  struct NameFrame {
    uint32_t node;
    NameView::Cursor cursor;
  };

  const CallTables& tables;
  const Vocabulary& v;
  Found* found;
  size_t visited = 0;
  std::vector<Frame> stack;
  std::vector<NameFrame> names;

  void Emit(const Vocabulary::Node& node, uint64_t need) {
    const auto clipped = static_cast<uint16_t>(std::min<uint64_t>(need, kForbidden - 1));
    for (uint32_t i = 0; i < node.tokens; ++i) found->emplace_back(v.token_ids(node)[i], clipped);
  }

  void Visit(uint32_t child, const States& states) {
    ++visited;
    const Vocabulary::Node& node = v.node(child);
    if (node.tokens && (v.complete() || !tables.MidCharacter(states.at[0]))) Emit(node, tables.ToEnd(states));
    if (node.children) stack.push_back({child, states});
  }

  void Expand(const Frame& frame) {
    const Vocabulary::Node& node = v.node(frame.node);
    States next;
    ByteSet bytes;
    if (node.children <= kFewChildren || !tables.Candidates(frame.states, &bytes)) {
      for (uint32_t child = node.first_child; child < node.first_child + node.children; ++child) {
        tables.Advance(frame.states, v.byte(child), &next);
        if (next.count) Visit(child, next);
      }
      return;
    }
    for (int word = 0; word < 4; ++word)
      for (uint64_t left = bytes.bits[word]; left; left &= left - 1) {
        const auto byte = static_cast<uint8_t>(word * 64 + __builtin_ctzll(left));
        const uint32_t child = v.Child(frame.node, byte);
        if (child == Vocabulary::kNone) continue;
        tables.Advance(frame.states, byte, &next);
        if (next.count) Visit(child, next);
      }
  }

  // A frame of one name state, and what lies below it within names. `s`: its state, but for the cursor.
  void ExpandNames(uint32_t start, State s) {
    const NameView& view = *tables.names_of(s);
    const uint64_t behind = tables.Behind(s, s.slot);
    States next;
    names.push_back({start, s.cursor});
    while (!names.empty()) {
      const NameFrame frame = names.back();
      names.pop_back();
      const Vocabulary::Node& node = v.node(frame.node);
      // Where a name ends, delimiters are the other walk's, with the names that go on so.
      const bool ends = view.Ends(frame.cursor);
      if (ends) {
        s.cursor = frame.cursor;
        const States from = Only(s);
        for (const char byte : {'>', ';', tables.close()[0]}) {
          const uint32_t child = v.Child(frame.node, static_cast<uint8_t>(byte));
          if (child == Vocabulary::kNone) continue;
          tables.Advance(from, static_cast<uint8_t>(byte), &next);
          if (next.count) Visit(child, next);
        }
      }
      const auto go = [&](uint32_t child, const NameView::Cursor& cursor) {
        if (ends && IsDelimiter(v.byte(child))) return;
        ++visited;
        const Vocabulary::Node& below = v.node(child);
        if (below.tokens && (v.complete() || !view.MidCharacter(cursor))) Emit(below, view.ToEnd(cursor) + behind);
        if (below.children) names.push_back({child, cursor});
      };
      if (node.children <= kFewChildren) {
        for (uint32_t child = node.first_child; child < node.first_child + node.children; ++child) {
          NameView::Cursor cursor = frame.cursor;
          if (view.Step(&cursor, v.byte(child))) go(child, cursor);
        }
      } else {
        view.Each(frame.cursor, [&](uint8_t byte, const NameView::Cursor& cursor) {
          const uint32_t child = v.Child(frame.node, byte);
          if (child != Vocabulary::kNone) go(child, cursor);
        });
      }
    }
  }

  bool IsDelimiter(uint8_t byte) const {
    return byte == '>' || byte == ';' || byte == static_cast<uint8_t>(tables.close()[0]);
  }

  static States Only(const State& s) {
    States states;
    states.at[0] = s;
    states.count = 1;
    return states;
  }
};

// Returns the nodes visited.
size_t CallTables::Walk(const States& from, Found* found) const {
  Walker walker{*this, *vocabulary, found, 0, {{Vocabulary::kRoot, from}}, {}};
  while (!walker.stack.empty()) {
    const Walker::Frame frame = walker.stack.back();
    walker.stack.pop_back();
    if (frame.states.count == 1 && frame.states.at[0].phase == kName)
      walker.ExpandNames(frame.node, frame.states.at[0]);
    else
      walker.Expand(frame);
  }
  return walker.visited;
}

std::shared_ptr<const std::vector<uint16_t>> CallTables::Kept(const std::string& key) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = kept_.find(key);
  return found == kept_.end() ? nullptr : found->second;
}

void CallTables::Keep(const std::string& key, std::shared_ptr<const std::vector<uint16_t>> needs) {
  std::lock_guard<std::mutex> lock(mu_);
  if (kept_.size() >= kKept) kept_.clear();
  kept_[key] = std::move(needs);
}

// ---- CallMasks ----

CallMasks::CallMasks() = default;
CallMasks::~CallMasks() = default;

Result<std::unique_ptr<CallMasks>> CallMasks::Make(std::shared_ptr<const Vocabulary> vocabulary,
                                                   const CallOptions& options,
                                                   std::shared_ptr<const NameSet> entities,
                                                   std::shared_ptr<const NameSet> relations) {
  if (options.max_parts < 1 || options.max_name_bytes < 1)
    return Status::InvalidArgument("max_parts and max_name_bytes must be at least 1");
  const std::string_view needed = options.write ? "({MEM_WRITE-->;})" : "({MEM_READ(>;)-->";
  if (const size_t at = vocabulary->SpelledPrefix(needed); at < needed.size())
    return Status::InvalidArgument(std::string("the vocabulary has no token for '") + needed[at] +
                                   "', which a call needs");
  std::unique_ptr<CallMasks> masks(new CallMasks);
  masks->vocabulary_ = std::move(vocabulary);
  masks->options_ = options;
  masks->entities_ = std::move(entities);
  masks->relations_ = std::move(relations);
  return masks;
}

size_t CallMasks::unspelled() const {
  std::lock_guard<std::mutex> lock(mu_);
  return tables_ ? tables_->unspelled : 0;
}

Result<CallGuide> CallMasks::Start(std::string_view prefix, uint32_t max_tokens) {
  std::shared_ptr<CallTables> tables;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const NameSet* sets[2] = {entities_.get(), relations_.get()};
    std::shared_ptr<const NameView> now[2];
    for (int i = 0; i < 2; ++i) now[i] = sets[i] ? sets[i]->view() : nullptr;
    if (!tables_ || tables_->given[0] != now[0] || tables_->given[1] != now[1]) {
      auto fresh = std::make_shared<CallTables>();
      fresh->vocabulary = vocabulary_;
      fresh->options = options_;
      for (int i = 0; i < 2; ++i) {
        fresh->given[i] = fresh->names[i] = now[i];
        if (!now[i]) continue;
        if (!vocabulary_->complete()) {
          PMS_ASSIGN_OR_RETURN(fresh->names[i], now[i]->Spelled(*vocabulary_));
          fresh->unspelled += now[i]->size() - fresh->names[i]->size();
        }
        const bool none = fresh->names[i]->empty();
        if (none) fresh->can_part = false;
        if (none && !(options_.write && options_.allow_empty))
          return Status::InvalidArgument(
              std::string(now[i]->empty() ? "there is no " : "the vocabulary can't spell any ") +
              (i ? "relation" : "entity") + " to choose from");
        fresh->least[i] = none ? CallTables::kNever : fresh->names[i]->ToEnd(fresh->names[i]->start());
      }
      tables_ = std::move(fresh);
    }
    tables = tables_;
  }
  CallGuide guide(tables, max_tokens);
  State start;
  start.parts_left = options_.max_parts - 1;
  guide.states_.at[0] = start;
  guide.states_.count = 1;
  for (size_t i = 0; i < prefix.size(); ++i) {
    States next;
    tables->Advance(guide.states_, static_cast<uint8_t>(prefix[i]), &next);
    if (!next.count)
      return Status::InvalidArgument("the prefix is no beginning of an allowed call from byte " + std::to_string(i) +
                                     " on");
    guide.states_ = next;
  }
  const State& at = guide.states_.at[0];
  if (!vocabulary_->complete() && tables->MidCharacter(at))
    return Status::InvalidArgument("the prefix ends within a character");
  return guide;
}

// ---- CallGuide ----

bool CallGuide::done() const { return states_.count && states_.at[0].phase == CallTables::kDone; }

size_t CallGuide::vocabulary_size() const { return tables_->vocabulary->size(); }

uint32_t CallGuide::to_end() const { return tables_->ToEnd(states_); }

namespace {

void Add32(uint32_t value, std::string* key) { key->append(reinterpret_cast<const char*>(&value), sizeof value); }

std::string KeyOf(const States& states) {
  std::string key;
  for (size_t i = 0; i < states.count; ++i) {
    const State& s = states.at[i];
    const int flags =
        s.opening | s.first_empty << 1 | s.spaced << 2 | s.bare << 3 | s.escape << 4 | s.bracket << 5;
    for (const int value : {+s.phase, +s.slot, +s.literal, +s.tail, +s.low, +s.high, flags})
      key.push_back(static_cast<char>(value));
    for (const uint32_t value : {s.parts_left, s.code, s.bytes_left, s.cursor.base.lo, s.cursor.base.hi,
                                 s.cursor.delta.lo, s.cursor.delta.hi, s.cursor.depth})
      Add32(value, &key);
  }
  return key;
}

}  // namespace

void CallGuide::Mask(bool* allowed) {
  const Vocabulary& v = *tables_->vocabulary;
  // Counters that no token can use up are as good as any higher.
  States states = states_;
  for (size_t i = 0; i < states.count; ++i) {
    State& s = states.at[i];
    s.parts_left = std::min(s.parts_left, static_cast<uint32_t>(v.most_separators()));
    if (s.phase == CallTables::kFree) s.bytes_left = std::min(s.bytes_left, static_cast<uint32_t>(v.longest() + 4));
  }
  uint32_t left = kForbidden - 1;
  if (tokens_left_ != CallMasks::kNoBudget) left = std::min(left, std::max(tokens_left_, 1u) - 1);
  const std::string key = KeyOf(states);
  std::shared_ptr<const std::vector<uint16_t>> needs = tables_->Kept(key);
  if (!needs) {
    CallTables::Found found;
    if (tables_->Walk(states, &found) <= kLongWalk) {
      std::memset(allowed, 0, v.size());
      uint16_t least = kForbidden;
      for (const auto& [token, need] : found) least = std::min(least, need);
      const uint32_t most = std::max<uint32_t>(left, least);
      for (const auto& [token, need] : found) allowed[token] = need <= most;
      return;
    }
    auto fresh = std::make_shared<std::vector<uint16_t>>(v.size(), kForbidden);
    for (const auto& [token, need] : found) (*fresh)[token] = need;
    tables_->Keep(key, fresh);
    needs = std::move(fresh);
  }
  const uint16_t* need = needs->data();
  const size_t n = v.size();
  auto most = static_cast<uint16_t>(left);
  bool any = false;
  for (size_t i = 0; i < n; ++i) any |= allowed[i] = need[i] <= most;
  if (any) return;
  most = *std::min_element(need, need + n);
  for (size_t i = 0; i < n; ++i) allowed[i] = need[i] <= most && need[i] != kForbidden;
}

Status CallGuide::Advance(uint32_t token) {
  const Vocabulary& v = *tables_->vocabulary;
  const std::string_view bytes = token < v.size() ? v.bytes(token) : std::string_view();
  States now = states_;
  for (const char c : bytes) {
    States next;
    tables_->Advance(now, static_cast<uint8_t>(c), &next);
    now = next;
    if (!now.count) break;
  }
  if (bytes.empty() || !now.count)
    return Status::InvalidArgument("token " + std::to_string(token) + " may not come here");
  states_ = now;
  if (tokens_left_ != CallMasks::kNoBudget && tokens_left_) --tokens_left_;
  return Status::Ok();
}

}  // namespace pymemstore
