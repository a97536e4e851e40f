// The name functions of the core: vectors by surface form, rules, keys, the tokenizer.
#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "convert.h"
#include "pymemstore/surface.h"

namespace pymemstore {
namespace {

py::array_t<float> EncodeAll(const py::sequence& names) {
  const std::vector<std::string> texts = Utf8List(names, "name");
  py::array_t<float> out({static_cast<py::ssize_t>(texts.size()), static_cast<py::ssize_t>(kSurfaceDim)});
  float* row = out.mutable_data();
  {
    ReleaseGil release;
    for (const std::string& text : texts) {
      EncodeSurface(text, row);
      row += kSurfaceDim;
    }
  }
  return out;
}

ParsedName Parsed(const py::object& name) { return ParseName(Utf8(name, "name")); }

using Tokens = std::vector<std::pair<std::string, std::string>>;

std::tuple<Tokens, std::vector<std::string>> Parse(const py::object& name) {
  ParsedName parsed = Parsed(name);
  Tokens tokens;
  tokens.reserve(parsed.tokens.size());
  for (Token& t : parsed.tokens) tokens.emplace_back(std::move(t.folded), std::move(t.original));
  return {std::move(tokens), std::move(parsed.numbers)};
}

std::vector<uint64_t> RuleKeys(const py::object& name, uint32_t rules, bool query) {
  const ParsedName parsed = Parsed(name);
  std::vector<uint64_t> keys;
  if (query) QueryKeys(parsed, rules, &keys);
  else IndexKeys(parsed, rules, &keys);
  return keys;
}

}  // namespace

void BindSurface(py::module_& m) {
  m.def("encode_surface", &EncodeAll, py::arg("names"), py::pos_only());
  m.def(
      "match_names",
      [](const py::object& query, const py::object& stored, uint32_t rules) {
        return static_cast<int>(MatchNames(Parsed(query), Parsed(stored), rules));
      },
      py::arg("query"), py::arg("stored"), py::arg("rules"), py::pos_only());
  m.def("rule_keys", &RuleKeys, py::arg("name"), py::arg("rules"), py::arg("query"), py::pos_only());
  m.def(
      "numbers_agree",
      [](const py::object& a, const py::object& b) { return NumbersAgree(Parsed(a), Parsed(b)); },
      py::arg("a"), py::arg("b"), py::pos_only());
  m.def("parse_name", &Parse, py::arg("name"), py::pos_only());
}

}  // namespace pymemstore
