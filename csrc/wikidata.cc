#include "wikidata.h"

#include <simdjson.h>

#include <algorithm>
#include <unordered_set>

#include "wikidata_values.h"

namespace pymemstore {
namespace {

namespace dom = simdjson::dom;

constexpr size_t kMostGathered = 256u << 20;

struct Policy {
  std::string languages = "en,en-*,mul", ranks = "best", qualifiers = "none";
  bool aliases = true, external_ids = true;
  std::unordered_set<std::string> properties, items, skip_datatypes;
};

// The member, or an element whose error nobody asks for.
std::string_view Text(const dom::object& object, std::string_view key) {
  std::string_view text;
  return object[key].get(text) ? std::string_view() : text;
}

bool Member(const dom::object& object, std::string_view key, dom::object* member) {
  return !object[key].get(*member);
}

// Q42, P31, L7, L7-F1, M5, E3 (a schema). None is longer than a sink takes, so that no line fails half told.
bool IsId(std::string_view id) {
  constexpr size_t kLongest = 64;
  if (id.size() < 2 || id.size() > kLongest) return false;
  if (std::string_view("QPLME").find(id[0]) == std::string_view::npos) return false;
  return id[1] >= '0' && id[1] <= '9' && id.find_first_not_of("0123456789-FS", 1) == std::string_view::npos;
}

std::string_view Trim(std::string_view line) {
  while (!line.empty() && (line.back() == ' ' || line.back() == '\t' || line.back() == '\r')) line.remove_suffix(1);
  while (!line.empty() && (line[0] == ' ' || line[0] == '\t')) line.remove_prefix(1);
  return line;
}

class WikidataReader : public LineReader {
 public:
  explicit WikidataReader(Policy options) : options_(std::move(options)) {}

  Status Line(std::string_view line, FactSink* sink) override {
    if (!gathered_.empty()) {
      if (line.empty() || line[0] != '{') return Gather(line, sink);
      // No line inside a record begins so: what was gathered is a line that was cut, and costs no other.
      gathered_.clear();
      const Status status = Line(line, sink);
      if (!status.ok() && status.code() != Code::kInvalidArgument) return status;
      return Status::InvalidArgument("not JSON: the record before this line has no end" +
                                     (status.ok() ? std::string() : "; " + status.message()));
    }
    std::string_view text = Trim(line);
    if (text.empty()) return Status::Ok();
    if (text == "[") {
      ++counts_["opening brackets"];
      return Status::Ok();
    }
    if (text == "]" || text == "],") {
      ++counts_["closing brackets"];
      return Status::Ok();
    }
    // A pretty-printed entity, or answer of the web API.
    if (text == "{") return Gather(line, sink);
    if (text.back() == ',') text = Trim(text.substr(0, text.size() - 1));
    dom::element element;
    const auto error = parser_.parse(text.data(), text.size()).get(element);
    if (error) return Status::InvalidArgument(std::string("not JSON: ") + simdjson::error_message(error));
    return Top(element, sink);
  }

  Status End(FactSink*) override {
    if (!gathered_.empty()) {
      gathered_.clear();
      counts_.erase("opening brackets");
      counts_.erase("closing brackets");
      return Status::InvalidArgument("incomplete: the input ends inside an entity");
    }
    // Of this input only: the next one has brackets of its own.
    const bool open = counts_["opening brackets"] > counts_["closing brackets"];
    counts_.erase("opening brackets");
    counts_.erase("closing brackets");
    if (open) return Status::InvalidArgument("incomplete dump: there is no closing bracket");
    return Status::Ok();
  }

  bool AtRecordStart() const override { return gathered_.empty(); }

 private:
  Status Gather(std::string_view line, FactSink* sink) {
    if (gathered_.size() + line.size() > kMostGathered) {
      gathered_.clear();
      return Status::Corruption("an entity over several lines has more than 256 MiB: not Wikidata's JSON");
    }
    gathered_.append(line).append("\n");
    if (line.empty() || line[0] != '}') return Status::Ok();
    const std::string whole = std::move(gathered_);
    gathered_.clear();
    dom::element element;
    const auto error = parser_.parse(whole).get(element);
    if (error) return Status::InvalidArgument(std::string("not JSON: ") + simdjson::error_message(error));
    return Top(element, sink);
  }

  // An entity, an array of them, or {"entities": {...}}.
  Status Top(const dom::element& element, FactSink* sink) {
    dom::array array;
    if (!element.get(array)) {
      ++counts_["opening brackets"];
      ++counts_["closing brackets"];
      return Each(array, sink);
    }
    dom::object object, entities;
    if (element.get(object)) return Status::InvalidArgument("not an entity: neither an object nor a list of them");
    if (!Member(object, "entities", &entities)) return Entity(object, sink);
    return Each(entities, sink);
  }

  const dom::element& Element(const dom::element& e) { return e; }
  dom::element Element(const dom::key_value_pair& e) { return e.value; }

  template <typename Container>
  Status Each(const Container& container, FactSink* sink) {
    std::string problems;
    for (auto entry : container) {
      dom::object entity;
      const Status status = Element(entry).get(entity) ? Status::InvalidArgument("not an entity: not an object")
                                                       : Entity(entity, sink);
      if (status.ok()) continue;
      if (status.code() != Code::kInvalidArgument) return status;
      if (problems.size() < 1000) problems.append(problems.empty() ? "" : "; ").append(status.message());
    }
    return problems.empty() ? Status::Ok() : Status::InvalidArgument(problems);
  }

  Status Entity(const dom::object& entity, FactSink* sink) {
    const std::string_view redirect = Text(entity, "redirect");
    if (!redirect.empty()) return Redirect(Text(entity, "entity"), redirect, sink);
    const std::string_view id = Text(entity, "id");
    if (!IsId(id)) return Status::InvalidArgument(id.empty() ? "an entity without id" : "the id is not one of Wikidata's");
    if (id[0] != 'Q' && id[0] != 'P') {
      ++counts_[id[0] == 'L' ? "lexemes" : "other"];
      return Status::Ok();
    }
    const bool property = id[0] == 'P';
    if (!property && !options_.items.empty() && !options_.items.count(std::string(id))) {
      ++counts_["skipped: item filter"];
      return Status::Ok();
    }
    if (!entity["missing"].error()) {
      // The web API's answer for an id that there is not: no entity, and nothing to withdraw.
      ++counts_["skipped: missing entity"];
      return Status::Ok();
    }
    ++counts_[property ? "properties" : "items"];
    PMS_ASSIGN_OR_RETURN(const FactSink::Ref self, sink->Key(Kind::kEntity, id));
    Names(entity, Kind::kEntity, self, sink);
    if (property) {
      PMS_ASSIGN_OR_RETURN(const FactSink::Ref relation, sink->Key(Kind::kRelation, id));
      Names(entity, Kind::kRelation, relation, sink);
    }
    sink->Whole(self);
    dom::object redirects, claims;
    // The web API followed it.
    if (Member(entity, "redirects", &redirects)) {
      const Status status = Redirect(Text(redirects, "from"), Text(redirects, "to"), sink);
      if (status.code() == Code::kInvalidArgument) {
        ++counts_["skipped: redirect without ids"];
      } else {
        PMS_RETURN_IF_ERROR(status);
      }
    }
    if (!Member(entity, "claims", &claims)) return Status::Ok();  // missing, or [] for an empty one
    for (const auto [id_of_property, list] : claims) {
      dom::array statements;
      if (list.get(statements)) {
        ++counts_["skipped: claims that are no list"];
        continue;
      }
      PMS_RETURN_IF_ERROR(Claims(self, id_of_property, statements, sink));
    }
    return Status::Ok();
  }

  Status Redirect(std::string_view from, std::string_view to, FactSink* sink) {
    if (!IsId(from) || !IsId(to)) return Status::InvalidArgument("a redirect without ids");
    ++counts_["redirects"];
    if (from[0] != 'Q' && from[0] != 'P') return Status::Ok();
    PMS_ASSIGN_OR_RETURN(const FactSink::Ref old, sink->Key(Kind::kEntity, from));
    PMS_ASSIGN_OR_RETURN(const FactSink::Ref target, sink->Key(Kind::kEntity, to));
    sink->Redirect(Kind::kEntity, old, target);
    return Status::Ok();
  }

  void Names(const dom::object& entity, Kind kind, FactSink::Ref ref, FactSink* sink) {
    dom::object labels, aliases;
    if (Member(entity, "labels", &labels)) {
      std::string_view best;
      uint32_t best_rank = UINT32_MAX;
      for (const auto [language, value] : labels) {
        dom::object label;
        uint32_t rank = 0;
        if (value.get(label) || !LanguageRank(options_.languages, language, &rank) || rank >= best_rank) continue;
        const std::string_view text = Text(label, "value");
        if (text.empty()) continue;
        best = text;
        best_rank = rank;
      }
      if (!best.empty()) sink->Label(kind, ref, best, best_rank);
    }
    if (!options_.aliases || !Member(entity, "aliases", &aliases)) return;
    for (const auto [language, value] : aliases) {
      dom::array list;
      uint32_t rank = 0;
      if (!LanguageRank(options_.languages, language, &rank) || value.get(list)) continue;
      for (const dom::element entry : list) {
        dom::object alias;
        if (entry.get(alias)) continue;
        const std::string_view text = Text(alias, "value");
        if (text.empty()) continue;
        sink->Alias(kind, ref, text);
        if (kind == Kind::kEntity) ++counts_["aliases"];
      }
    }
  }

  Status Claims(FactSink::Ref self, std::string_view property, const dom::array& statements, FactSink* sink) {
    if (!options_.properties.empty() && !options_.properties.count(std::string(property))) {
      counts_["skipped: property filter"] += statements.size();
      return Status::Ok();
    }
    bool preferred = false;
    if (options_.ranks == "best")
      for (const dom::element entry : statements) {
        dom::object statement;
        preferred = preferred || (!entry.get(statement) && Text(statement, "rank") == "preferred");
      }
    FactSink::Ref relation = 0;
    bool has_relation = false;
    for (const dom::element entry : statements) {
      dom::object statement, snak;
      if (entry.get(statement) || !Member(statement, "mainsnak", &snak)) {
        ++counts_["skipped: no main snak"];
        continue;
      }
      const std::string_view rank = Text(statement, "rank");
      if (rank == "deprecated" && options_.ranks != "all") {
        ++counts_["skipped: deprecated"];
        continue;
      }
      if (preferred && rank != "preferred") {
        ++counts_["skipped: not best rank"];
        continue;
      }
      FactSink::Ref object = 0;
      PMS_ASSIGN_OR_RETURN(const bool has_value, Value(snak, sink, &object));
      if (!has_value) continue;
      if (!has_relation) {
        auto ref = sink->Key(Kind::kRelation, property);
        if (!ref.ok()) {
          ++counts_["skipped: bad property id"];
          continue;
        }
        relation = *ref;
        has_relation = true;
      }
      sink->Fact(self, relation, object);
      ++counts_["facts"];
      if (options_.qualifiers == "time") PMS_RETURN_IF_ERROR(Qualifiers(self, relation, object, statement, sink));
    }
    return Status::Ok();
  }

  // A statement that has a time becomes an entity of its own, under its statement id.
  Status Qualifiers(FactSink::Ref self, FactSink::Ref relation, FactSink::Ref object, const dom::object& statement,
                    FactSink* sink) {
    dom::object qualifiers;
    const std::string_view id = Text(statement, "id");
    if (id.empty() || !Member(statement, "qualifiers", &qualifiers)) return Status::Ok();
    if (id.size() > kMaxExternalIdBytes) {
      ++counts_["skipped: bad statement id"];
      return Status::Ok();
    }
    FactSink::Ref node = 0;
    bool made = false;
    for (const std::string_view property : {"P580", "P582", "P585"}) {
      dom::array snaks;
      if (qualifiers[property].get(snaks)) continue;
      for (const dom::element entry : snaks) {
        dom::object snak;
        FactSink::Ref time = 0;
        // Of novalue and somevalue only those of statements are counted.
        if (entry.get(snak) || Text(snak, "snaktype") != "value") continue;
        PMS_ASSIGN_OR_RETURN(const bool has_value, Value(snak, sink, &time));
        if (!has_value) continue;
        if (!made) {
          PMS_ASSIGN_OR_RETURN(node, sink->Key(Kind::kEntity, id));
          PMS_ASSIGN_OR_RETURN(const FactSink::Ref of, sink->Name(Kind::kRelation, "statement of"));
          sink->Fact(node, of, self);
          sink->Fact(node, relation, object);
          counts_["qualifier facts"] += 2;
          made = true;
        }
        PMS_ASSIGN_OR_RETURN(const FactSink::Ref when, sink->Key(Kind::kRelation, property));
        sink->Fact(node, when, time);
        ++counts_["qualifier facts"];
      }
    }
    return Status::Ok();
  }

  // False: no value that is stored, and why is counted.
  Result<bool> Value(const dom::object& snak, FactSink* sink, FactSink::Ref* ref) {
    const std::string_view snak_type = Text(snak, "snaktype");
    dom::object datavalue;
    if (snak_type == "novalue" || snak_type == "somevalue") return Skip(snak_type);
    if (!Member(snak, "datavalue", &datavalue)) return Skip("no value");
    const std::string datatype(Text(snak, "datatype"));
    if (datatype == "external-id" && !options_.external_ids) return Skip("external ids");
    if (options_.skip_datatypes.count(datatype)) return Skip("datatype " + datatype);
    const std::string_view type = Text(datavalue, "type");
    std::string text;
    dom::object value;
    if (type == "string") {
      text = Text(datavalue, "value");
      if (text.empty()) return Skip("empty text");
    } else if (!Member(datavalue, "value", &value)) {
      return Skip("bad value");
    } else if (type == "wikibase-entityid") {
      std::string id(Text(value, "id"));
      uint64_t number = 0;
      if (id.empty() && !value["numeric-id"].get(number)) {
        const std::string_view entity = Text(value, "entity-type");
        const char* letter = entity == "property" ? "P" : entity == "lexeme" ? "L" : entity == "item" ? "Q" : "";
        id = letter + std::to_string(number);
      }
      if (!IsId(id)) return Skip("bad value");
      PMS_ASSIGN_OR_RETURN(*ref, sink->Key(Kind::kEntity, id));
      return true;
    } else if (type == "time") {
      int64_t precision = 0;
      if (value["precision"].get(precision) ||
          !RenderTime(Text(value, "time"), precision, LocalName(Text(value, "calendarmodel")) == "Q1985786", &text))
        return Skip("bad value");
    } else if (type == "quantity") {
      if (Text(value, "amount").empty()) return Skip("bad value");
      text = RenderQuantity(Text(value, "amount"), Text(value, "unit"), Text(value, "lowerBound"), Text(value, "upperBound"));
    } else if (type == "globecoordinate") {
      double latitude = 0, longitude = 0, precision = 0;
      if (value["latitude"].get(latitude) || value["longitude"].get(longitude)) return Skip("bad value");
      text = RenderDouble(latitude) + ", " + RenderDouble(longitude);
      if (!value["precision"].get(precision)) text += " ±" + RenderDouble(precision);
      const std::string_view globe = LocalName(Text(value, "globe"));
      if (!globe.empty() && globe != "Q2") text.append(" on ").append(globe);
    } else if (type == "monolingualtext") {
      text = Text(value, "text");
      if (text.empty()) return Skip("empty text");
      text.append(" (").append(Text(value, "language")).append(")");
    } else {
      return Skip("unknown datatype");
    }
    if (text.size() > kMaxNameBytes) return Skip("text too long");
    PMS_ASSIGN_OR_RETURN(*ref, sink->Name(Kind::kEntity, text));
    return true;
  }

  bool Skip(std::string_view why) {
    ++counts_["skipped: " + std::string(why)];
    return false;
  }

  const Policy options_;
  dom::parser parser_;
  std::string gathered_;
};

Result<bool> Switch(const std::string& name, const std::string& value) {
  if (value == "1") return true;
  if (value == "0") return false;
  return Status::InvalidArgument("the option " + name + " is '" + value + "', expected 1 or 0");
}

Status OneOf(const std::string& name, const std::string& value, std::initializer_list<const char*> allowed) {
  std::string list;
  for (const char* a : allowed) {
    if (value == a) return Status::Ok();
    list += list.empty() ? a : std::string(", ") + a;
  }
  return Status::InvalidArgument("the option " + name + " is '" + value + "', expected one of " + list);
}

std::unordered_set<std::string> ToSet(const std::string& text) {
  const std::vector<std::string> list = SplitList(text);
  return {list.begin(), list.end()};
}

}  // namespace

std::vector<std::string> SplitList(const std::string& text) {
  std::vector<std::string> list;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    if (comma > at) list.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return list;
}

Result<std::unique_ptr<LineReader>> NewWikidataReader(const std::map<std::string, std::string>& given) {
  Policy options;
  for (const auto& [name, value] : given) {
    if (name == "languages") {
      if (SplitList(value).empty()) return Status::InvalidArgument("the option languages is empty");
      options.languages = value;
    } else if (name == "ranks") {
      PMS_RETURN_IF_ERROR(OneOf(name, value, {"best", "nondeprecated", "all"}));
      options.ranks = value;
    } else if (name == "qualifiers") {
      PMS_RETURN_IF_ERROR(OneOf(name, value, {"none", "time"}));
      options.qualifiers = value;
    } else if (name == "aliases") {
      PMS_ASSIGN_OR_RETURN(options.aliases, Switch(name, value));
    } else if (name == "external_ids") {
      PMS_ASSIGN_OR_RETURN(options.external_ids, Switch(name, value));
    } else if (name == "properties") {
      options.properties = ToSet(value);
    } else if (name == "items") {
      options.items = ToSet(value);
    } else if (name == "skip_datatypes") {
      options.skip_datatypes = ToSet(value);
    } else {
      return Status::InvalidArgument("the format wikidata has no option '" + name + "'");
    }
  }
  return std::unique_ptr<LineReader>(new WikidataReader(std::move(options)));
}

}  // namespace pymemstore
