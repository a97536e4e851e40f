// The states of a call, shared by the guides of one moment's names.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pymemstore/token_masks.h"

namespace pymemstore {

struct ByteSet {
  uint64_t bits[4] = {0, 0, 0, 0};
  void Add(int b) { bits[b >> 6] |= 1ull << (b & 63); }
};

// What the guides of one moment's names share.
struct CallTables {
  using State = CallGuide::State;
  using States = CallGuide::States;
  enum Phase : uint8_t {
    kHead,   // in the opening
    kSlot,   // before a slot
    kName,   // in a name of a set
    kFree,   // in free text
    kArrow,  // between the two bytes of >>
    kClose,  // in the close
    kDone,
  };
  static constexpr uint64_t kNever = UINT32_MAX;

  std::shared_ptr<const Vocabulary> vocabulary;
  CallOptions options;
  std::shared_ptr<const NameView> given[2], names[2];  // as the sets have them, and as the vocabulary spells them
  bool can_part = true;                                // there are names for a part
  uint64_t least[2] = {1, 1};                          // bytes of the shortest entity, relation
  size_t unspelled = 0;

  std::string_view head() const { return options.write ? "({MEM_WRITE-->" : "({MEM_READ("; }
  std::string_view close() const { return options.write ? "})" : ")-->"; }
  const NameView* names_of(const State& s) const { return names[s.slot == 1].get(); }
  bool MustBeEmpty(const State& s) const { return !options.write && s.slot == 2 && !s.first_empty; }

  void Step(const State& s, uint8_t byte, States* out) const;
  void Advance(const States& from, uint8_t byte, States* out) const {
    out->count = 0;
    for (size_t i = 0; i < from.count; ++i) Step(from.at[i], byte, out);
  }
  uint32_t ToEnd(const States& states) const;
  bool MidCharacter(const State& s) const {
    return s.phase == kFree ? s.tail > 0 : s.phase == kName && names_of(s)->MidCharacter(s.cursor);
  }

  using Found = std::vector<std::pair<uint32_t, uint16_t>>;  // a token, and the bytes that end the call after it
  size_t Walk(const States& from, Found* found) const;
  std::shared_ptr<const std::vector<uint16_t>> Kept(const std::string& key);
  void Keep(const std::string& key, std::shared_ptr<const std::vector<uint16_t>> needs);

 private:
  struct Walker;

  void Enter(const State& s, uint8_t byte, States* out) const;
  void StepFree(const State& s, uint8_t byte, States* out) const;
  void Delimit(const State& s, uint8_t byte, States* out) const;
  uint64_t Behind(const State& s, int slot) const;
  uint64_t ToEnd(const State& s) const;
  bool Candidates(const States& states, ByteSet* bytes) const;

  std::mutex mu_;
  std::unordered_map<std::string, std::shared_ptr<const std::vector<uint16_t>>> kept_;
};

}  // namespace pymemstore
