#include "wikidata_values.h"

#include <algorithm>
#include <charconv>

namespace pymemstore {
namespace {

bool AllDigits(std::string_view text) {
  if (text.empty()) return false;
  for (char c : text)
    if (c < '0' || c > '9') return false;
  return true;
}

std::string_view WithoutPlus(std::string_view amount) {
  if (!amount.empty() && amount[0] == '+') amount.remove_prefix(1);
  return amount;
}

}  // namespace

bool RenderTime(std::string_view time, int64_t precision, bool julian, std::string* text) {
  if (time.size() < 2 || (time[0] != '+' && time[0] != '-') || precision < 0 || precision > 14) return false;
  const bool before = time[0] == '-';
  time.remove_prefix(1);
  const size_t dash = time.find('-');
  if (dash == std::string_view::npos || !AllDigits(time.substr(0, dash))) return false;
  std::string_view year = time.substr(0, dash);
  // -MM-DDTHH:MM:SSZ
  const std::string_view rest = time.substr(dash);
  if (rest.size() != 16 || rest[3] != '-' || rest[6] != 'T' || !AllDigits(rest.substr(1, 2)) ||
      !AllDigits(rest.substr(4, 2)))
    return false;
  while (year.size() > 1 && year[0] == '0') year.remove_prefix(1);
  *text = year;
  const bool month = precision >= 10 && rest.substr(1, 2) != "00";
  const bool day = month && precision >= 11 && rest.substr(4, 2) != "00";
  if (month) text->append(rest.substr(0, 3));
  if (day) text->append(rest.substr(3, 3));
  if (day && precision >= 12) text->append(" ").append(rest.substr(7, precision == 12 ? 2 : precision == 13 ? 5 : 8));
  if (before) text->append(" BCE");
  static const char* kSpans[] = {"10^9 years", "10^8 years", "10^7 years", "10^6 years", "10^5 years",
                                 "10^4 years", "millennium", "century",    "decade"};
  if (precision < 9) text->append(" (").append(kSpans[precision]).append(")");
  if (julian) text->append(" (Julian)");
  return true;
}

std::string RenderQuantity(std::string_view amount, std::string_view unit, std::string_view lower,
                           std::string_view upper) {
  std::string text(WithoutPlus(amount));
  if (unit != "1" && !unit.empty()) text.append(" ").append(LocalName(unit));
  if (!lower.empty() || !upper.empty())
    text.append(" [").append(WithoutPlus(lower)).append(", ").append(WithoutPlus(upper)).append("]");
  return text;
}

std::string_view LocalName(std::string_view iri) {
  const size_t slash = iri.find_last_of('/');
  return slash == std::string_view::npos ? iri : iri.substr(slash + 1);
}

std::string RenderDouble(double value) {
  char buffer[512];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  return std::string(buffer, end.ptr);
}

bool LanguageRank(std::string_view chain, std::string_view language, uint32_t* rank) {
  for (uint32_t place = 0; !chain.empty(); ++place) {
    const size_t comma = std::min(chain.find(','), chain.size());
    const std::string_view pattern = chain.substr(0, comma);
    chain.remove_prefix(std::min(comma + 1, chain.size()));
    *rank = place << 16;
    if (pattern == language) return true;
    if (pattern == "*") return *rank |= 0xffff, true;
    if (pattern.size() < 2 || pattern.back() != '*') continue;
    const std::string_view prefix = pattern.substr(0, pattern.size() - 1);
    if (language.size() <= prefix.size() || language.substr(0, prefix.size()) != prefix) continue;
    const std::string_view tag = language.substr(prefix.size());
    *rank |= static_cast<uint32_t>(static_cast<uint8_t>(tag[0])) << 8 | (tag.size() > 1 ? static_cast<uint8_t>(tag[1]) : 0);
    return true;
  }
  return false;
}

}  // namespace pymemstore
