#include <algorithm>
#include <array>
#include <numeric>

#include "pymemstore/token_masks.h"

namespace pymemstore {
namespace {

size_t CharacterLength(uint8_t lead) { return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4; }

}  // namespace

Result<std::shared_ptr<const Vocabulary>> Vocabulary::Make(const std::vector<std::string>& tokens) {
  if (tokens.empty() || tokens.size() >= kNone)
    return Status::InvalidArgument("a vocabulary of " + std::to_string(tokens.size()) + " tokens");
  auto v = std::make_shared<Vocabulary>();
  v->offsets_.reserve(tokens.size() + 1);
  v->offsets_.push_back(0);
  for (const std::string& token : tokens) {
    v->blob_ += token;
    v->offsets_.push_back(v->blob_.size());
    v->longest_ = std::max(v->longest_, token.size());
    v->most_separators_ =
        std::max(v->most_separators_, static_cast<size_t>(std::count(token.begin(), token.end(), ';')));
  }
  std::vector<uint32_t> order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const int c = tokens[a].compare(tokens[b]);
    return c ? c < 0 : a < b;
  });

  // Level by level, so that a node's children are consecutive. A node's tokens are a range of `order`.
  struct Pending {
    size_t lo, hi;
    size_t depth;
  };
  std::vector<Pending> pending{{0, order.size(), 0}};
  v->node_bytes_.push_back(0);
  for (size_t n = 0; n < pending.size(); ++n) {
    auto [lo, hi, depth] = pending[n];
    Node node{static_cast<uint32_t>(pending.size()), 0, static_cast<uint32_t>(v->token_ids_.size()), 0};
    for (; lo < hi && tokens[order[lo]].size() == depth; ++lo) {
      if (depth == 0) continue;
      v->token_ids_.push_back(order[lo]);
      ++node.tokens;
    }
    while (lo < hi) {
      const char byte = tokens[order[lo]][depth];
      size_t end = lo;
      while (end < hi && tokens[order[end]][depth] == byte) ++end;
      pending.push_back({lo, end, depth + 1});
      v->node_bytes_.push_back(static_cast<uint8_t>(byte));
      ++node.children;
      lo = end;
    }
    v->nodes_.push_back(node);
  }
  std::fill(std::begin(v->root_child_), std::end(v->root_child_), kNone);
  const Node& root = v->nodes_[kRoot];
  size_t singles = 0;
  for (uint32_t c = root.first_child; c < root.first_child + root.children; ++c) {
    v->root_child_[v->node_bytes_[c]] = c;
    singles += v->nodes_[c].tokens > 0;
  }
  v->complete_ = singles == 256;
  return std::shared_ptr<const Vocabulary>(std::move(v));
}

uint32_t Vocabulary::Child(uint32_t n, uint8_t byte) const {
  if (n == kRoot) return root_child_[byte];
  const uint8_t* first = node_bytes_.data() + nodes_[n].first_child;
  const uint8_t* last = first + nodes_[n].children;
  const uint8_t* found = std::lower_bound(first, last, byte);
  return found != last && *found == byte ? nodes_[n].first_child + static_cast<uint32_t>(found - first) : kNone;
}

bool Vocabulary::IsToken(std::string_view bytes) const {
  uint32_t n = kRoot;
  for (const char c : bytes)
    if ((n = Child(n, static_cast<uint8_t>(c))) == kNone) return false;
  return nodes_[n].tokens > 0;
}

size_t Vocabulary::SpelledPrefix(std::string_view text) const {
  if (complete_) return text.size();
  for (size_t i = 0; i < text.size();) {
    const std::string_view character = text.substr(i, CharacterLength(static_cast<uint8_t>(text[i])));
    bool spelled = IsToken(character);
    if (!spelled) {
      spelled = true;
      for (const char c : character) spelled = spelled && IsToken(std::string_view(&c, 1));
    }
    if (!spelled) return i;
    i += character.size();
  }
  return text.size();
}

}  // namespace pymemstore
