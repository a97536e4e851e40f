// How a call's states take a byte, and how far they are from its end.
#include <algorithm>
#include <cstring>

#include "token_masks_tables.h"

namespace pymemstore {
namespace {

bool IsSpace(uint32_t c) {
  return c == ' ' || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
         c == 0x202f || c == 0x205f || c == 0x3000;
}

// Not `}`: before a `)` it would make the `})` that servers look for.
bool IsEscapable(uint8_t b) { return b && std::strchr("\\;>{) ", b); }

void Push(const CallGuide::State& s, CallGuide::States* out) {
  if (out->count < CallGuide::States::kMost) out->at[out->count++] = s;
}

}  // namespace

void CallTables::Step(const State& s, uint8_t byte, States* out) const {
  State next = s;
  switch (s.phase) {
    case kHead:
      if (s.literal == 2 && byte == ' ' && !s.spaced) {
        next.spaced = true;
        Push(next, out);
      } else if (byte == static_cast<uint8_t>(head()[s.literal])) {
        if (++next.literal == head().size()) {
          next.phase = kSlot;
          next.spaced = false;
          next.literal = 0;
        }
        Push(next, out);
      }
      return;
    case kSlot:
      if (byte == ' ' && !s.spaced) {
        next.spaced = true;
        Push(next, out);
        return;
      }
      if (MustBeEmpty(s)) return Delimit(s, byte, out);
      if (s.opening && options.write && options.allow_empty && byte == '}') {
        next.phase = kClose;
        next.literal = 1;
        Push(next, out);
        return;
      }
      if (!can_part) return;
      next.opening = false;
      if (!options.write && s.slot == 0 && byte == '>') {
        next.phase = kArrow;
        next.first_empty = true;
        Push(next, out);
        return;
      }
      return Enter(next, byte, out);
    case kName:
      if (names_of(s)->Step(&next.cursor, byte)) Push(next, out);
      if (names_of(s)->Ends(s.cursor)) Delimit(s, byte, out);
      return;
    case kFree:
      return StepFree(s, byte, out);
    case kArrow:
      if (byte != '>') return;
      next.phase = kSlot;
      ++next.slot;
      next.spaced = false;
      Push(next, out);
      return;
    case kClose:
      if (byte != static_cast<uint8_t>(close()[s.literal])) return;
      if (++next.literal == close().size()) next.phase = kDone;
      Push(next, out);
      return;
    default:
      return;
  }
}

void CallTables::Enter(const State& s, uint8_t byte, States* out) const {
  State next = s;
  if (const NameView* view = names_of(s)) {
    next.phase = kName;
    next.cursor = view->start();
    if (view->Step(&next.cursor, byte)) Push(next, out);
    return;
  }
  next.phase = kFree;
  next.bare = true;
  next.escape = next.bracket = false;
  next.tail = 0;
  next.bytes_left = options.max_name_bytes;
  StepFree(next, byte, out);
}

void CallTables::StepFree(const State& s, uint8_t byte, States* out) const {
  State next = s;
  if (!s.bare && !s.escape && !s.tail) Delimit(s, byte, out);
  if (!s.bytes_left) return;
  --next.bytes_left;
  if (s.escape) {
    if (!IsEscapable(byte)) return;
    next.escape = next.bare = next.bracket = false;
  } else if (s.tail) {
    if (byte < s.low || byte > s.high) return;
    next.code = s.code << 6 | (byte & 0x3f);
    next.low = 0x80;
    next.high = 0xbf;
    if (--next.tail == 0) {
      if (s.bare && IsSpace(next.code)) return;
      next.bare = false;
      next.code = 0;
      next.low = next.high = 0;
    }
  } else if (byte < 0x80) {
    if (byte < 0x20 || byte == 0x7f || byte == ';' || byte == '>' || byte == '{' || byte == '}') return;
    if (byte == '\\') {
      if (!next.bytes_left) return;
      next.escape = true;
    } else if (byte == ' ') {
      if (s.bare) return;
    } else {
      if (byte == '-' && s.bracket) return;
      next.bracket = byte == ')';
      next.bare = false;
    }
  } else {
    // The ranges of well-formed UTF-8; C2 80 to C2 9F are control characters.
    const int tail = byte >= 0xc2 && byte < 0xe0 ? 1 : (byte & 0xf0) == 0xe0 ? 2 : byte >= 0xf0 && byte < 0xf5 ? 3 : 0;
    if (!tail || next.bytes_left < static_cast<uint32_t>(tail)) return;
    next.tail = static_cast<uint8_t>(tail);
    next.code = byte & (0x3f >> tail);
    next.low = byte == 0xc2 || byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;
    next.high = byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;
    next.bracket = false;
  }
  Push(next, out);
}

void CallTables::Delimit(const State& s, uint8_t byte, States* out) const {
  State next;  // of the slot nothing matters any more
  next.opening = false;
  next.slot = s.slot;
  next.first_empty = s.first_empty;
  next.parts_left = s.parts_left;
  if (s.slot < 2) {
    if (byte != '>') return;
    next.phase = kArrow;
  } else if (byte == ';' && s.parts_left) {
    next.phase = kSlot;
    next.slot = 0;
    next.first_empty = false;
    --next.parts_left;
  } else if (byte == static_cast<uint8_t>(close()[0])) {
    next.phase = kClose;
    next.literal = 1;
  } else {
    return;
  }
  Push(next, out);
}

// ---- the way to the end ----

uint64_t CallTables::Behind(const State& s, int slot) const {
  uint64_t bytes = close().size();
  if (slot < 2) bytes += 2 + (options.write || s.first_empty ? least[0] : 0);
  if (slot < 1) bytes += 2 + least[1];
  return bytes;
}

uint64_t CallTables::ToEnd(const State& s) const {
  const auto before = [&](int slot) {
    if (slot == 0 && s.opening && options.write && options.allow_empty) return static_cast<uint64_t>(close().size());
    State at = s;
    at.slot = static_cast<uint8_t>(slot);
    return Behind(s, slot) + (MustBeEmpty(at) ? 0 : least[slot == 1]);
  };
  switch (s.phase) {
    case kHead:
      return head().size() - s.literal + before(0);
    case kSlot:
      return before(s.slot);
    case kName:
      return names_of(s)->ToEnd(s.cursor) + Behind(s, s.slot);
    case kFree:
      return (s.escape ? 1u : s.tail ? s.tail : s.bare ? 1u : 0u) + Behind(s, s.slot);
    case kArrow:
      return 1 + before(s.slot + 1);
    case kClose:
      return close().size() - s.literal;
    default:
      return 0;
  }
}

uint32_t CallTables::ToEnd(const States& states) const {
  uint64_t least_bytes = kNever;
  for (size_t i = 0; i < states.count; ++i) least_bytes = std::min(least_bytes, ToEnd(states.at[i]));
  return static_cast<uint32_t>(least_bytes);
}

}  // namespace pymemstore
