#include "ntriples.h"

#include <algorithm>
#include <unordered_set>

#include "utf8.h"
#include "wikidata.h"
#include "wikidata_values.h"

namespace pymemstore {
namespace {

enum class TermType : uint8_t { kIri, kBlank, kLiteral };
struct Term {
  TermType type = TermType::kIri;
  std::string text;      // escapes undone
  std::string datatype;  // of a literal
  std::string language;  // of a literal, in lower case
};

struct Statement {
  Term subject, predicate, object;
};

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// One line. The first error sticks; `problem` says what it is.
class Parser {
 public:
  explicit Parser(std::string_view line) : rest_(line) {}

  // False: blank, a comment, or `problem` is set.
  bool Parse(Statement* statement) {
    Space();
    if (rest_.empty() || rest_[0] == '#') return false;
    if (!Node(&statement->subject, false)) return false;
    Space();
    if (rest_.empty() || rest_[0] != '<') return Fail("the predicate is no IRI");
    if (!Iri(&statement->predicate.text)) return false;
    Space();
    if (!Node(&statement->object, true)) return false;
    Space();
    if (rest_.empty() || rest_[0] != '.') return Fail("no dot behind the object");
    rest_.remove_prefix(1);
    Space();
    return rest_.empty() || rest_[0] == '#' || Fail("more behind the dot");
  }
  const std::string& problem() const { return problem_; }

 private:
  bool Fail(const char* why) {
    problem_ = why;
    return false;
  }
  void Space() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\t')) rest_.remove_prefix(1);
  }
  bool Node(Term* term, bool literal_too) {
    if (rest_.empty()) return Fail("a term is missing");
    if (rest_[0] == '<') {
      term->type = TermType::kIri;
      return Iri(&term->text);
    }
    if (rest_[0] == '_') return Blank(term);
    if (rest_[0] == '"') return literal_too ? Literal(term) : Fail("the subject is a literal");
    return Fail(literal_too ? "the object is no IRI, blank node or literal" : "the subject is no IRI or blank node");
  }
  bool Blank(Term* term) {
    term->type = TermType::kBlank;
    size_t n = 2;
    if (rest_.size() < 3 || rest_[1] != ':') return Fail("a blank node without a label");
    while (n < rest_.size() && (IsLetter(rest_[n]) || IsDigit(rest_[n]) || rest_[n] == '_' || rest_[n] == '-' ||
                                rest_[n] == '.' || rest_[n] == ':' || (rest_[n] & 0x80)))
      ++n;
    while (n > 2 && rest_[n - 1] == '.') --n;
    if (n == 2 || rest_[2] == '-' || rest_[2] == '.') return Fail("a blank node without a label");
    term->text = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return true;
  }
  bool Iri(std::string* iri) {
    rest_.remove_prefix(1);
    iri->clear();
    while (!rest_.empty() && rest_[0] != '>') {
      const char c = rest_[0];
      if (c == '\\') {
        if (rest_.size() < 2 || (rest_[1] != 'u' && rest_[1] != 'U')) return Fail("an IRI with an escape it may not have");
        if (!CodePoint(iri)) return false;
        continue;
      }
      if (static_cast<uint8_t>(c) <= 0x20 || c == '<' || c == '"' || c == '{' || c == '}' || c == '|' || c == '^' || c == '`')
        return Fail("an IRI with a character it may not have");
      iri->push_back(c);
      rest_.remove_prefix(1);
    }
    if (rest_.empty()) return Fail("an IRI without end");
    rest_.remove_prefix(1);
    // A scheme, and a colon before anything that ends one.
    const size_t colon = iri->find_first_of(":/?#");
    return (colon != std::string::npos && colon > 0 && (*iri)[colon] == ':' && IsLetter((*iri)[0])) ||
           Fail("an IRI that is not absolute");
  }
  bool Literal(Term* term) {
    term->type = TermType::kLiteral;
    rest_.remove_prefix(1);
    while (!rest_.empty() && rest_[0] != '"') {
      if (rest_[0] == '\\') {
        if (!Escape(&term->text)) return false;
        continue;
      }
      const size_t n = std::min(rest_.find_first_of("\\\"\r\n"), rest_.size());
      if (n < rest_.size() && (rest_[n] == '\r' || rest_[n] == '\n')) return Fail("a literal with a raw line end");
      term->text.append(rest_.substr(0, n));
      rest_.remove_prefix(n);
    }
    if (rest_.empty()) return Fail("a literal without end");
    rest_.remove_prefix(1);
    if (rest_.substr(0, 2) == "^^") {
      rest_.remove_prefix(2);
      if (rest_.empty() || rest_[0] != '<') return Fail("a datatype that is no IRI");
      return Iri(&term->datatype);
    }
    return rest_.empty() || rest_[0] != '@' || Language(&term->language);
  }
  bool Language(std::string* language) {
    rest_.remove_prefix(1);
    bool first = true;  // the first part has letters only, and no part is empty
    while (!rest_.empty() && (IsLetter(rest_[0]) || rest_[0] == '-' || (!first && IsDigit(rest_[0])))) {
      const char c = rest_[0];
      if (c == '-') {
        if (language->empty() || language->back() == '-') break;
        first = false;
      }
      language->push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c);
      rest_.remove_prefix(1);
    }
    const bool whole = rest_.empty() || (rest_[0] != '-' && !IsDigit(rest_[0]));
    return (whole && !language->empty() && language->back() != '-') || Fail("a language tag that is none");
  }
  bool Escape(std::string* out) {
    static constexpr std::string_view kFrom = "tbnrf\"'\\", kTo = "\t\b\n\r\f\"'\\";
    if (rest_.size() < 2) return Fail("an escape without end");
    if (rest_[1] == 'u' || rest_[1] == 'U') return CodePoint(out);
    const size_t at = kFrom.find(rest_[1]);
    if (at == std::string_view::npos) return Fail("an unknown escape");
    out->push_back(kTo[at]);
    rest_.remove_prefix(2);
    return true;
  }
  bool CodePoint(std::string* out) {
    const size_t digits = rest_[1] == 'u' ? 4 : 8;
    if (rest_.size() < 2 + digits) return Fail("an escape without end");
    uint32_t c = 0;
    for (char d : rest_.substr(2, digits)) {
      const int v = IsDigit(d) ? d - '0' : d >= 'a' && d <= 'f' ? d - 'a' + 10 : d >= 'A' && d <= 'F' ? d - 'A' + 10 : -1;
      if (v < 0) return Fail("an escape with a digit that is none");
      c = c << 4 | static_cast<uint32_t>(v);
    }
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return Fail("an escape that is no character");
    rest_.remove_prefix(2 + digits);
    if (c < 0x80) {
      out->push_back(static_cast<char>(c));
    } else {
      const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
      out->push_back(static_cast<char>((more == 1 ? 0xc0 : more == 2 ? 0xe0 : 0xf0) | c >> (6 * more)));
      for (int i = more - 1; i >= 0; --i) out->push_back(static_cast<char>(0x80 | (c >> (6 * i) & 0x3f)));
    }
    return true;
  }

  std::string_view rest_;
  std::string problem_;
};

constexpr std::string_view kLabel = "http://www.w3.org/2000/01/rdf-schema#label",
                           kAltLabel = "http://www.w3.org/2004/02/skos/core#altLabel",
                           kSameAs = "http://www.w3.org/2002/07/owl#sameAs", kWikidata = "www.wikidata.org/",
                           kXsd = "http://www.w3.org/2001/XMLSchema#",
                           kWkt = "http://www.opengis.net/ont/geosparql#wktLiteral";

struct Policy {
  std::string languages = "en,en-*,mul";
  bool wikidata = true, aliases = true;
  std::unordered_set<std::string> properties, items;
};

bool IsWikidataId(std::string_view id) {
  return id.size() > 1 && id.size() <= 64 && (id[0] == 'Q' || id[0] == 'P' || id[0] == 'L' || id[0] == 'E') &&
         id.find_first_not_of("0123456789-FS", 1) == std::string_view::npos;
}

class NTriplesReader : public LineReader {
 public:
  explicit NTriplesReader(Policy policy) : policy_(std::move(policy)) {}

  Status Line(std::string_view line, FactSink* sink) override {
    const size_t valid = ValidUtf8(line);
    if (valid != line.size())
      return Status::InvalidArgument("not UTF-8: at byte " + std::to_string(valid + 1) + " of the line");
    Statement t;
    Parser parser(line);
    if (!parser.Parse(&t)) return parser.problem().empty() ? Status::Ok() : Status::InvalidArgument(parser.problem());
    if (t.subject.type == TermType::kBlank || t.object.type == TermType::kBlank) return Skip("blank node");
    const std::string id = Id(t.subject.text);
    const bool known = id.size() != t.subject.text.size();  // Wikidata's: Id() made it shorter
    if (known && id[0] == 'L') return Skip("lexeme");
    // As in JSON the filter leaves properties alone: they name the relations.
    if (!policy_.items.empty() && !(known && id[0] == 'P') && !policy_.items.count(id)) return Skip("item filter");
    if (t.predicate.text == kLabel) return Named(id, t.object, false, sink);
    if (t.predicate.text == kAltLabel) return Named(id, t.object, true, sink);
    if (t.predicate.text == kSameAs) return SameAs(id, t.object, sink);
    return Triple(id, t, sink);
  }
  Status End(FactSink*) override { return Status::Ok(); }

 private:
  Status Skip(const char* why) {
    ++counts_[std::string("skipped: ") + why];
    return Status::Ok();
  }

  // What stands behind http(s)://www.wikidata.org/; "" for another IRI.
  static std::string_view Wikidata(std::string_view iri) {
    for (std::string_view scheme : {"http://", "https://"})
      if (iri.substr(0, scheme.size()) == scheme && iri.substr(scheme.size(), kWikidata.size()) == kWikidata)
        return iri.substr(scheme.size() + kWikidata.size());
    return {};
  }
  // Q42 for Wikidata's entities, else the IRI.
  std::string Id(const std::string& iri) const {
    const std::string_view path = policy_.wikidata ? Wikidata(iri) : std::string_view();
    if (path.substr(0, 7) == "entity/" && IsWikidataId(path.substr(7))) return std::string(path.substr(7));
    return iri;
  }

  Status Named(const std::string& id, const Term& text, bool alias, FactSink* sink) {
    if (text.type != TermType::kLiteral) return Skip("label that is no text");
    ++counts_[alias ? "aliases" : "labels"];
    uint32_t rank = 0;
    if (!text.language.empty() && !LanguageRank(policy_.languages, text.language, &rank))
      return Skip(alias ? "alias in another language" : "label in another language");
    if (text.text.empty()) return Skip("empty text");
    if (alias && !policy_.aliases) return Skip("alias");
    const bool relation_too = !policy_.wikidata || id[0] == 'P';
    for (Kind kind : {Kind::kEntity, Kind::kRelation}) {
      // Other data may name its relations, too; a label alone makes no relation there.
      if (kind == Kind::kRelation && (!relation_too || !policy_.wikidata)) continue;
      PMS_ASSIGN_OR_RETURN(const FactSink::Ref ref, sink->Key(kind, id));
      if (alias) {
        sink->Alias(kind, ref, text.text);
      } else {
        sink->Label(kind, ref, text.text, rank);
      }
    }
    return Status::Ok();
  }

  Status SameAs(const std::string& id, const Term& target, FactSink* sink) {
    if (target.type != TermType::kIri) return Skip("sameAs without an IRI");
    ++counts_["redirects"];
    PMS_ASSIGN_OR_RETURN(const FactSink::Ref from, sink->Key(Kind::kEntity, id));
    PMS_ASSIGN_OR_RETURN(const FactSink::Ref to, sink->Key(Kind::kEntity, Id(target.text)));
    sink->Redirect(Kind::kEntity, from, to);
    return Status::Ok();
  }

  Status Triple(const std::string& id, const Statement& t, FactSink* sink) {
    std::string property = t.predicate.text;
    if (policy_.wikidata) {
      const std::string_view path = Wikidata(t.predicate.text), object = Wikidata(t.object.text);
      if (t.object.type == TermType::kIri && object.substr(0, 13) == "prop/novalue/") return Skip("novalue");
      if (path.substr(0, 12) != "prop/direct/" || !IsWikidataId(path.substr(12))) return Skip("other predicate");
      if (t.object.type == TermType::kIri && object.substr(0, 18) == ".well-known/genid/") return Skip("somevalue");
      property = path.substr(12);
    }
    if (!policy_.properties.empty() && !policy_.properties.count(property)) return Skip("property filter");
    std::string text;
    if (t.object.type == TermType::kLiteral) {
      text = Rendered(t.object);
      if (text.empty()) return Skip("empty text");
      if (text.size() > kMaxNameBytes) return Skip("text too long");
    }
    PMS_ASSIGN_OR_RETURN(const FactSink::Ref subject, sink->Key(Kind::kEntity, id));
    PMS_ASSIGN_OR_RETURN(const FactSink::Ref relation, sink->Key(Kind::kRelation, property));
    FactSink::Ref object = 0;
    if (t.object.type == TermType::kLiteral) {
      PMS_ASSIGN_OR_RETURN(object, sink->Name(Kind::kEntity, text));
    } else {
      PMS_ASSIGN_OR_RETURN(object, sink->Key(Kind::kEntity, Id(t.object.text)));
    }
    sink->Fact(subject, relation, object);
    ++counts_["facts"];
    return Status::Ok();
  }

  // As the JSON reader writes the same value, where the two say the same.
  std::string Rendered(const Term& t) const {
    if (!t.language.empty()) return t.text + " (" + t.language + ")";
    if (!policy_.wikidata) return t.text;
    const std::string_view type = t.datatype;
    if (type == std::string(kXsd) + "decimal" && !t.text.empty() && t.text[0] == '+') return t.text.substr(1);
    if (type == std::string(kXsd) + "dateTime") {
      constexpr std::string_view kMidnight = "T00:00:00Z";
      const size_t end = t.text.size() - std::min(t.text.size(), kMidnight.size());
      return t.text.substr(end) == kMidnight ? t.text.substr(0, end) : t.text;
    }
    if (type == kWkt) return Point(t.text);
    return t.text;
  }

  // "Point(LON LAT)" or "<GLOBE> Point(LON LAT)" as "LAT, LON" and " on Q405".
  static std::string Point(const std::string& wkt) {
    const size_t point = wkt.find("Point(");
    const size_t space = point == std::string::npos ? point : wkt.find(' ', point + 6);
    const size_t end = space == std::string::npos ? space : wkt.find(')', space);
    if (end == std::string::npos || end + 1 != wkt.size()) return wkt;
    std::string text = wkt.substr(space + 1, end - space - 1) + ", " + wkt.substr(point + 6, space - point - 6);
    if (wkt[0] == '<') text.append(" on ").append(LocalName(std::string_view(wkt).substr(1, wkt.find('>') - 1)));
    return text;
  }

  const Policy policy_;
};

}  // namespace

Result<std::unique_ptr<LineReader>> NewNTriplesReader(const std::map<std::string, std::string>& given) {
  Policy policy;
  auto set = [](const std::string& text) {
    const std::vector<std::string> list = SplitList(text);
    return std::unordered_set<std::string>(list.begin(), list.end());
  };
  for (const auto& [name, value] : given) {
    if (name == "vocabulary") {
      if (value != "wikidata" && value != "any")
        return Status::InvalidArgument("the option vocabulary is '" + value + "', expected wikidata or any");
      policy.wikidata = value == "wikidata";
    } else if (name == "languages") {
      if (SplitList(value).empty()) return Status::InvalidArgument("the option languages is empty");
      policy.languages = value;
    } else if (name == "aliases") {
      if (value != "1" && value != "0") return Status::InvalidArgument("the option aliases is '" + value + "', expected 1 or 0");
      policy.aliases = value == "1";
    } else if (name == "properties") {
      policy.properties = set(value);
    } else if (name == "items") {
      policy.items = set(value);
    } else {
      return Status::InvalidArgument("the format ntriples has no option '" + name + "'");
    }
  }
  return std::unique_ptr<LineReader>(new NTriplesReader(std::move(policy)));
}

}  // namespace pymemstore
