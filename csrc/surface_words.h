// Word lists of the tokenizer, the vectors and the rules.
#pragma once

#include <cstdint>
#include <string_view>

namespace pymemstore {

struct WordInfo {
  uint8_t idf64 = 64;       // weight in 64ths; 64 for a word not in the table
  uint8_t month = 0;        // 1-12
  bool stop = false;        // articles, prepositions, conjunctions
  bool suffix = false;      // of an ordinal: st nd rd th
  bool type_or_honour = false;  // "river", "dr": never a name's short form
  int32_t number = -1;      // of a number word or ordinal word
};

// What is known of a folded word; a default WordInfo for an unknown one.
const WordInfo& LookUpWord(std::string_view folded);

// The country, state or city that a name without spaces and "the" stands for ("british" → "united kingdom");
// empty when it is none.
std::string_view CountryOf(std::string_view joined);

}  // namespace pymemstore
