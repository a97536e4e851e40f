// Values of Wikidata statements as text, without loss; docs/import.md has the forms.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pymemstore {

// "+1952-03-11T00:00:00Z" at precision 11 is "1952-03-11"; what the precision does not cover is left out, so that no
// day or month is invented. False: not a time of Wikidata's.
bool RenderTime(std::string_view time, int64_t precision, bool julian, std::string* text);
// "1.75 Q11573 [1.7, 1.8]": unit and bounds when there are some; digits as they were.
std::string RenderQuantity(std::string_view amount, std::string_view unit, std::string_view lower,
                           std::string_view upper);
// The part of an entity IRI behind its last slash.
std::string_view LocalName(std::string_view iri);
// The shortest decimal that reads back as the same double.
std::string RenderDouble(double value);
// A language chain such as "en,en-*,mul": the place of a language in it. Of the languages that one wildcard covers the
// alphabetically first (by its first two letters) comes first. False: not in the chain.
bool LanguageRank(std::string_view chain, std::string_view language, uint32_t* rank);

}  // namespace pymemstore
