// Names against std::set, masks against all call texts written out.
#include "pymemstore/token_masks.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "check.h"

namespace pymemstore {
namespace {

std::shared_ptr<const Vocabulary> Bytes(std::vector<std::string> more = {}) {
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  tokens.insert(tokens.end(), more.begin(), more.end());
  return *Vocabulary::Make(tokens);
}

std::string RandomName(std::mt19937* rng) {
  static const char* kUnits[] = {"a", "b", "ab", ")", " ", "\xc3\xa9", "\\;", "\\"};
  std::string name;
  for (size_t n = (*rng)() % 6 + 1; n > 0; --n) name += kUnits[(*rng)() % 8];
  if ((*rng)() % 8 == 0) name.insert((*rng)() % name.size(), 1, '\0');
  return name;
}

std::shared_ptr<NameSet> SetOf(const std::vector<std::string>& names) {
  auto set = std::make_shared<NameSet>();
  CHECK_OK(set->Update(names, {}));
  return set;
}

// Compares a view with the names it should hold, along the bytes of `path`.
void CheckPath(const NameView& view, const std::set<std::string>& truth, const std::string& path) {
  NameView::Cursor cursor = view.start();
  for (size_t depth = 0;; ++depth) {
    const std::string prefix = path.substr(0, depth);
    uint32_t shortest = UINT32_MAX;
    std::set<uint8_t> next;
    for (auto it = truth.lower_bound(prefix); it != truth.end() && it->compare(0, depth, prefix) == 0; ++it) {
      shortest = std::min(shortest, static_cast<uint32_t>(it->size() - depth));
      if (it->size() > depth) next.insert(static_cast<uint8_t>((*it)[depth]));
    }
    CHECK_EQ(view.ToEnd(cursor), shortest);
    CHECK_EQ(view.Ends(cursor), depth > 0 && truth.count(prefix) > 0);
    for (int byte = 0; byte < 256; ++byte) {
      NameView::Cursor to = cursor;
      CHECK_EQ(view.Step(&to, static_cast<uint8_t>(byte)), next.count(static_cast<uint8_t>(byte)) > 0);
    }
    if (depth == path.size() || !view.Step(&cursor, static_cast<uint8_t>(path[depth]))) return;
  }
}

TEST(NamesAreThoseOfASet) {
  std::mt19937 rng(7);
  NameSet set;
  std::set<std::string> truth;
  for (int round = 0; round < 40; ++round) {
    std::vector<std::string> added, removed;
    const size_t many = round % 10 == 3 ? 3000 : rng() % 20;
    for (size_t i = 0; i < many; ++i)
      added.push_back(RandomName(&rng) + (many > 20 ? std::to_string(rng() % 100000) : ""));
    for (const std::string& name : truth)
      if (rng() % (truth.size() / 10 + 1) == 0) removed.push_back(name);
    removed.push_back("never there");
    CHECK_OK(set.Update(added, removed));
    for (const std::string& name : removed) truth.erase(name);
    truth.insert(added.begin(), added.end());
    const auto view = set.view();
    CHECK_EQ(view->size(), truth.size());
    for (int i = 0; i < 5 && !truth.empty(); ++i) {
      auto it = truth.lower_bound(RandomName(&rng));
      CheckPath(*view, truth, it == truth.end() ? *truth.begin() : *it);
      CheckPath(*view, truth, RandomName(&rng));
    }
  }
  CHECK_EQ(set.Update({""}, {}).code(), Code::kInvalidArgument);
}

TEST(SpansEndAtWordEnds) {
  const std::string text("New York is new\0York", 20);
  const auto vocabulary = Bytes();
  auto made = NameIndex::MakeSpans(text, {0, 4, 9, 12, 16}, {3, 8, 11, 15, 20}, 12, *vocabulary);
  CHECK_OK(made);
  const NameSet set(*made);
  std::set<std::string> truth;
  for (const uint32_t start : {0u, 4u, 9u, 12u, 16u})
    for (const uint32_t end : {3u, 8u, 11u, 15u, 20u})
      if (start < end && end - start <= 12 && !(start < 15 && end > 15)) truth.insert(text.substr(start, end - start));
  CHECK_EQ(truth.size(), 9u);
  for (const std::string& name : truth) CheckPath(*set.view(), truth, name);
  CheckPath(*set.view(), truth, "New Yorker");
  CHECK_EQ(NameIndex::MakeSpans(text, {4, 0}, {3}, 9, *vocabulary).status().code(), Code::kInvalidArgument);
  CHECK_EQ(NameIndex::MakeSpans(text, {0}, {21}, 9, *vocabulary).status().code(), Code::kInvalidArgument);
  CHECK_EQ((*NameIndex::MakeSpans(text, {0}, {15}, 12, *vocabulary))->size(), 0u);
}

TEST(TheTrieHoldsEachToken) {
  const auto v = Bytes({"ab", "abc", "ab", "", ";;x;"});
  CHECK(v->complete());
  CHECK_EQ(v->most_separators(), 3u);
  CHECK_EQ(v->longest(), 4u);
  std::multiset<uint32_t> seen;
  std::vector<std::pair<uint32_t, std::string>> stack{{Vocabulary::kRoot, ""}};
  while (!stack.empty()) {
    const auto [n, text] = stack.back();
    stack.pop_back();
    const Vocabulary::Node& node = v->node(n);
    for (uint32_t i = 0; i < node.tokens; ++i) {
      seen.insert(v->token_ids(node)[i]);
      CHECK_EQ(std::string(v->bytes(v->token_ids(node)[i])), text);
    }
    for (uint32_t c = node.first_child; c < node.first_child + node.children; ++c) {
      CHECK_EQ(v->Child(n, v->byte(c)), c);
      stack.emplace_back(c, text + static_cast<char>(v->byte(c)));
    }
  }
  CHECK_EQ(seen.size(), 260u);  // all but the empty one
  CHECK_EQ(seen.count(259), 0u);
  const auto letters = *Vocabulary::Make({"a", "\xc3\xa9", "\xe6", "\x97", "\xa5"});
  CHECK(!letters->complete());
  CHECK(letters->Spells("a\xc3\xa9\xe6\x97\xa5"));
  CHECK_EQ(letters->SpelledPrefix("a\xc3\xa8"), 1u);
  CHECK_EQ(Vocabulary::Make({}).status().code(), Code::kInvalidArgument);
}

// All calls over the names without the optional spaces, and the fewest bytes from each prefix to an end.
std::map<std::string, uint32_t> Needs(bool write, const std::vector<std::string>& names, const std::string& relation) {
  std::vector<std::string> parts, calls;
  for (const std::string& a : names) {
    if (!write) {
      parts.push_back(a + ">>" + relation + ">>");
      parts.push_back(">>" + relation + ">>" + a);
    }
    for (const std::string& b : names)
      if (write) parts.push_back(a + ">>" + relation + ">>" + b);
  }
  const std::string head = write ? "({MEM_WRITE-->" : "({MEM_READ(", close = write ? "})" : ")-->";
  if (write) calls.push_back(head + close);
  for (const std::string& a : parts) {
    calls.push_back(head + a + close);
    for (const std::string& b : parts) calls.push_back(head + a + ";" + b + close);
  }
  std::map<std::string, uint32_t> needs;
  for (const std::string& call : calls)
    for (size_t n = 0; n <= call.size(); ++n) {
      const auto need = static_cast<uint32_t>(call.size() - n);
      const auto [it, fresh] = needs.try_emplace(call.substr(0, n), need);
      if (!fresh) it->second = std::min(it->second, need);
    }
  return needs;
}

TEST(MasksAreThoseOfAllTexts) {
  const std::vector<std::string> names{"a", "a)", "a))", "\xc3\xa9\\;", "ab"};
  const auto v = Bytes({"a)", "))", ")-->", ">>r>>", ";a", "a>>r>>a;a", "\xa9\\", "({MEM_", "})", "})x", ">>)--",
                        "-->", "b>"});
  std::mt19937 rng(3);
  for (const bool write : {false, true})
    for (const uint32_t budget : {CallMasks::kNoBudget, 25u, 6u}) {
      CallOptions options;
      options.write = write;
      options.max_parts = 2;
      auto masks = CallMasks::Make(v, options, SetOf(names), SetOf({"r"}));
      CHECK_OK(masks);
      const auto needs = Needs(write, names, "r");
      for (int round = 0; round < 40; ++round) {
        auto guide = (*masks)->Start("", budget);
        CHECK_OK(guide);
        std::string text;
        uint32_t left = budget;
        std::unique_ptr<bool[]> allowed(new bool[v->size()]);
        while (!guide->done()) {
          CHECK_EQ(guide->to_end(), needs.at(text));
          guide->Mask(allowed.get());
          std::map<uint32_t, uint32_t> expected;
          uint32_t least = UINT32_MAX;
          for (uint32_t t = 0; t < v->size(); ++t) {
            const auto it = needs.find(text + std::string(v->bytes(t)));
            if (it == needs.end()) continue;
            expected[t] = it->second;
            least = std::min(least, it->second);
          }
          const uint32_t most = budget == CallMasks::kNoBudget ? budget : std::max(left ? left - 1 : 0, least);
          std::vector<uint32_t> choice;
          for (uint32_t t = 0; t < v->size(); ++t) {
            if (v->bytes(t) == " ") continue;  // the texts are without
            const bool want = expected.count(t) && expected[t] <= most;
            CHECK_EQ(allowed[t], want);
            if (want) choice.push_back(t);
          }
          const uint32_t token = choice[rng() % choice.size()];
          CHECK_OK(guide->Advance(token));
          text += v->bytes(token);
          if (left != CallMasks::kNoBudget && left) --left;
        }
        CHECK_EQ(needs.at(text), 0u);
      }
    }
}

TEST(WhatCanNotBeIsRefused) {
  const auto v = Bytes();
  CallOptions options;
  auto masks = std::move(*CallMasks::Make(v, options, SetOf({}), nullptr));
  CHECK_EQ(masks->Start("", 9).status().code(), Code::kInvalidArgument);
  masks = std::move(*CallMasks::Make(v, options, nullptr, nullptr));
  CHECK_EQ(masks->Start("({MEM_WRITE", 9).status().code(), Code::kInvalidArgument);
  CallGuide guide = *masks->Start("({MEM_READ(\xc3", 9);
  CHECK_EQ(guide.Advance('a').code(), Code::kInvalidArgument);
  CHECK_EQ(guide.Advance(256).code(), Code::kInvalidArgument);
  CHECK_OK(guide.Advance(0xa9));
  options.max_parts = 0;
  CHECK_EQ(CallMasks::Make(v, options, nullptr, nullptr).status().code(), Code::kInvalidArgument);
  CHECK_EQ(CallMasks::Make(*Vocabulary::Make({"a"}), {}, nullptr, nullptr).status().code(), Code::kInvalidArgument);
}

TEST(NamesMayChangeWhileGuidesRun) {
  const auto v = Bytes();
  auto names = SetOf({"start"});
  auto masks = std::move(*CallMasks::Make(v, {}, names, SetOf({"r"})));
  std::thread writer([&] {
    for (int i = 0; i < 300; ++i) CHECK_OK(names->Update({"n" + std::to_string(i)}, {"n" + std::to_string(i - 40)}));
  });
  std::vector<std::thread> readers;
  for (int k = 0; k < 3; ++k)
    readers.emplace_back([&] {
      std::unique_ptr<bool[]> allowed(new bool[v->size()]);
      for (int i = 0; i < 200; ++i) {
        CallGuide guide = *masks->Start("({MEM_READ(", CallMasks::kNoBudget);
        while (!guide.done()) {
          guide.Mask(allowed.get());
          uint32_t token = 0;
          while (token < v->size() && (!allowed[token] || token == ' ')) ++token;
          CHECK_OK(guide.Advance(token));
        }
      }
    });
  writer.join();
  for (std::thread& reader : readers) reader.join();
  CHECK_EQ(names->view()->size(), 41u);
}

}  // namespace
}  // namespace pymemstore
