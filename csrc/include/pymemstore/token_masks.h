// Which token may come next while a language model writes a MemLLM call: the call syntax, with slots that take free
// text, names of a set, or spans of a text. Nothing is compiled: a vocabulary's byte trie is walked together with the
// states of the syntax and with ranges of sorted names. docs/constrained-decoding.md gives the grammar.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pymemstore/status.h"

namespace pymemstore {

// The bytes of each token of a tokenizer, as a trie. Immutable.
class Vocabulary {
 public:
  struct Node {
    uint32_t first_child, children;  // consecutive nodes in the order of their bytes
    uint32_t first_token, tokens;    // a place in token_ids
  };

  // tokens[i]: the bytes of token i; empty: never allowed.
  static Result<std::shared_ptr<const Vocabulary>> Make(const std::vector<std::string>& tokens);

  size_t size() const { return offsets_.size() - 1; }
  std::string_view bytes(uint32_t token) const {
    return std::string_view(blob_).substr(offsets_[token], offsets_[token + 1] - offsets_[token]);
  }
  size_t longest() const { return longest_; }                  // bytes
  size_t most_separators() const { return most_separators_; }  // ';' in one token
  bool complete() const { return complete_; }                  // each byte alone is a token: it spells anything
  // Whether text can be written from any of its characters on: each is a token, or each of its bytes is.
  bool Spells(std::string_view text) const { return SpelledPrefix(text) == text.size(); }
  size_t SpelledPrefix(std::string_view text) const;

  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNone = UINT32_MAX;
  const Node& node(uint32_t n) const { return nodes_[n]; }
  uint8_t byte(uint32_t n) const { return node_bytes_[n]; }
  uint32_t Child(uint32_t n, uint8_t byte) const;  // kNone: there is none
  const uint32_t* token_ids(const Node& n) const { return token_ids_.data() + n.first_token; }

 private:
  bool IsToken(std::string_view bytes) const;

  std::string blob_;
  std::vector<uint64_t> offsets_;
  std::vector<Node> nodes_;
  std::vector<uint8_t> node_bytes_;
  std::vector<uint32_t> token_ids_;
  uint32_t root_child_[256];
  size_t longest_ = 0, most_separators_ = 0;
  bool complete_ = false;
};

struct NameRange {
  uint32_t lo = 0, hi = 0;
  bool empty() const { return lo >= hi; }
  uint32_t size() const { return hi - lo; }
};

// Byte strings in byte order; those with a common prefix are a range. Immutable. Either a set of names, each ending
// where it ends, or the suffixes of a text from its word starts, where each word end within reach ends a name.
class NameIndex {
 public:
  static Result<std::shared_ptr<const NameIndex>> Make(const std::vector<std::string>& names);
  // starts, ends: ascending offsets in text. A name is text[start, end) of at most max_bytes, without a byte 0 and
  // spelled by `vocabulary`.
  static Result<std::shared_ptr<const NameIndex>> MakeSpans(std::string text, const std::vector<uint32_t>& starts,
                                                            const std::vector<uint32_t>& ends, size_t max_bytes,
                                                            const Vocabulary& vocabulary);
  // The names of a that are not in `without` (ascending places), and those of b.
  static Result<std::shared_ptr<const NameIndex>> Merge(const NameIndex& a, const std::vector<uint32_t>& without,
                                                        const NameIndex& b);

  uint32_t size() const { return static_cast<uint32_t>(starts_.size()); }
  NameRange all() const { return {0, size()}; }
  std::string_view name(uint32_t i) const { return std::string_view(text_).substr(starts_[i], Length(i)); }
  // The byte of name i at `depth`, -1 at its end.
  int ByteAt(uint32_t i, uint32_t depth) const {
    if (depth < 8 && !heads_.empty())
      if (const int byte = static_cast<int>(heads_[i] >> (56 - 8 * depth) & 0xff)) return byte;
    return depth < Length(i) ? static_cast<uint8_t>(text_[starts_[i] + depth]) : -1;
  }
  // The rest take a range whose names have their first `depth` bytes in common.
  NameRange Step(NameRange range, uint32_t depth, uint8_t byte) const;
  uint32_t RunEnd(NameRange range, uint32_t depth) const;  // the first whose byte is another than range.lo's
  // Bytes of the shortest way to the end of a name; 0: here is one. Linear in the range for spans only.
  uint32_t ToEnd(NameRange range, uint32_t depth) const;
  bool Ends(NameRange range, uint32_t depth) const;
  // The place of a name; size() where there is none.
  uint32_t Find(std::string_view name) const;
  size_t memory() const;

 private:
  NameIndex() = default;
  uint32_t Length(uint32_t i) const {
    return spans_ ? lengths_[i] : (i + 1 < starts_.size() ? starts_[i + 1] : end_) - starts_[i];
  }
  uint32_t LowerBound(NameRange range, uint32_t depth, int byte) const;
  void Append(std::string_view name);
  void Finish();

  bool spans_ = false;
  std::string text_;
  std::vector<uint32_t> starts_;
  std::vector<uint64_t> heads_;    // of names: the first 8 bytes, filled up with 0: one cache miss less
  uint32_t end_ = 0;
  std::vector<uint32_t> lengths_;  // of spans
  std::vector<uint32_t> to_end_;   // of spans: from each offset to the next word end
  std::vector<uint32_t> least_;    // of names: the least length in each block
};

// A set of names that changes: a base, what was added to it and what was taken out. Views are immutable.
class NameView {
 public:
  struct Cursor {
    NameRange base, delta;
    uint32_t depth = 0;
  };

  NameView(std::shared_ptr<const NameIndex> base, std::vector<uint32_t> removed,
           std::shared_ptr<const NameIndex> delta);

  bool empty() const { return size() == 0; }
  size_t size() const { return base_->size() - removed_.size() + delta_->size(); }
  Cursor start() const { return {base_->all(), delta_->all(), 0}; }
  bool Step(Cursor* cursor, uint8_t byte) const;  // false: no name goes on so
  // As of NameIndex.
  uint32_t ToEnd(const Cursor& cursor) const;
  bool Ends(const Cursor& cursor) const;
  bool MidCharacter(const Cursor& cursor) const;
  // Calls fn(byte, cursor) for each byte that may follow, with what it leads to.
  template <typename Fn>
  void Each(const Cursor& cursor, Fn&& fn) const {
    NameRange base = cursor.base, delta = cursor.delta;
    const auto next = [&cursor](const NameIndex& index, NameRange* rest) {
      while (!rest->empty()) {  // past those that end here
        const int byte = index.ByteAt(rest->lo, cursor.depth);
        if (byte >= 0) return byte;
        rest->lo = index.RunEnd(*rest, cursor.depth);
      }
      return 256;
    };
    const auto take = [&cursor](const NameIndex& index, NameRange* rest) {
      const NameRange run{rest->lo, index.RunEnd(*rest, cursor.depth)};
      rest->lo = run.hi;
      return run;
    };
    int a = next(*base_, &base), b = next(*delta_, &delta);
    while (a < 256 || b < 256) {
      const int byte = a < b ? a : b;
      Cursor to{{}, {}, cursor.depth + 1};
      if (a == byte) to.base = take(*base_, &base);
      if (b == byte) to.delta = take(*delta_, &delta);
      if (!Live(to.base)) to.base = {};
      if (!to.base.empty() || !to.delta.empty()) fn(static_cast<uint8_t>(byte), to);
      a = next(*base_, &base);
      b = next(*delta_, &delta);
    }
  }

  const NameIndex& base() const { return *base_; }
  const NameIndex& delta() const { return *delta_; }
  const std::vector<uint32_t>& removed() const { return removed_; }
  // Only the names that the vocabulary spells.
  Result<std::shared_ptr<const NameView>> Spelled(const Vocabulary& vocabulary) const;

 private:
  friend class NameSet;
  bool Live(NameRange base_range) const;

  std::shared_ptr<const NameIndex> base_, delta_;
  std::vector<uint32_t> removed_;  // ascending places in base_
};

// Safe to use from several threads.
class NameSet {
 public:
  NameSet();
  explicit NameSet(std::shared_ptr<const NameIndex> base);
  // Takes names out, then adds. Names that are not there, or there already, change nothing.
  Status Update(const std::vector<std::string>& added, const std::vector<std::string>& removed);
  std::shared_ptr<const NameView> view() const;

 private:
  mutable std::mutex mu_, update_mu_;
  std::shared_ptr<const NameView> view_;
};

struct CallOptions {
  bool write = false;
  bool allow_empty = true;        // of a write: no part at all
  uint32_t max_parts = 3;
  uint32_t max_name_bytes = 256;  // of free slots, as written
};

class CallGuide;
struct CallTables;

// A call's syntax and names for one vocabulary; makes guides. Safe to use from several threads.
class CallMasks {
 public:
  static constexpr uint32_t kNoBudget = UINT32_MAX;

  // A null set: that slot takes free text.
  static Result<std::unique_ptr<CallMasks>> Make(std::shared_ptr<const Vocabulary> vocabulary,
                                                 const CallOptions& options, std::shared_ptr<const NameSet> entities,
                                                 std::shared_ptr<const NameSet> relations);
  ~CallMasks();
  // A guide over the names as they are now, which has seen `prefix`; max_tokens are those to come.
  Result<CallGuide> Start(std::string_view prefix, uint32_t max_tokens);
  // Of the names as they were at the last Start: those that the vocabulary can't spell, left out.
  size_t unspelled() const;

 private:
  CallMasks();
  std::shared_ptr<const Vocabulary> vocabulary_;
  CallOptions options_;
  std::shared_ptr<const NameSet> entities_, relations_;
  mutable std::mutex mu_;
  std::shared_ptr<CallTables> tables_;  // of the last views
};

// One row's place in its call. For one thread at a time.
class CallGuide {
 public:
  struct State {
    uint8_t phase = 0, slot = 0;
    uint8_t literal = 0;       // bytes seen of the opening or the close
    bool opening = true;       // no part has begun
    bool first_empty = false;  // a query's subject is open
    bool spaced = false;       // the one space before a slot has been
    uint32_t parts_left = 0;   // that may still begin
    NameView::Cursor cursor;   // in a name
    // In free text: no character yet; behind a backslash; behind `)` and spaces; bytes to come of a character, the
    // next one's range, and what there is of its number.
    bool bare = true, escape = false, bracket = false;
    uint8_t tail = 0, low = 0, high = 0;
    uint32_t code = 0, bytes_left = 0;
  };
  struct States {
    static constexpr size_t kMost = 4;
    State at[kMost];
    size_t count = 0;
  };

  bool done() const;
  size_t vocabulary_size() const;
  // Writes true for each token that may come, at least one unless done(). `allowed` has the vocabulary's size.
  void Mask(bool* allowed);
  Status Advance(uint32_t token);
  // The fewest bytes that end the call from here.
  uint32_t to_end() const;

 private:
  friend class CallMasks;
  explicit CallGuide(std::shared_ptr<CallTables> tables, uint32_t max_tokens)
      : tables_(std::move(tables)), tokens_left_(max_tokens) {}

  std::shared_ptr<CallTables> tables_;
  uint32_t tokens_left_;
  States states_;
};

}  // namespace pymemstore
