// The name functions of the core: vectors by surface form, rules, keys, the tokenizer.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "pymemstore/surface.h"

namespace py = pybind11;

namespace pymemstore {
namespace {

// The UTF-8 that the str object keeps, valid as long as it. A lone surrogate raises UnicodeEncodeError.
std::string_view Utf8Of(const py::str& text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) throw py::error_already_set();
  return {data, static_cast<size_t>(size)};
}

py::array_t<float> EncodeAll(const std::vector<py::str>& names) {  // the vector owns references
  std::vector<std::string_view> texts;
  texts.reserve(names.size());
  for (const py::str& name : names) texts.push_back(Utf8Of(name));
  py::array_t<float> out({static_cast<py::ssize_t>(names.size()), static_cast<py::ssize_t>(kSurfaceDim)});
  float* row = out.mutable_data();
  {
    py::gil_scoped_release release;
    for (std::string_view text : texts) {
      EncodeSurface(text, row);
      row += kSurfaceDim;
    }
  }
  return out;
}

using Tokens = std::vector<std::pair<std::string, std::string>>;

std::tuple<Tokens, std::vector<std::string>> Parse(const py::str& name) {
  ParsedName parsed = ParseName(Utf8Of(name));
  Tokens tokens;
  tokens.reserve(parsed.tokens.size());
  for (Token& t : parsed.tokens) tokens.emplace_back(std::move(t.folded), std::move(t.original));
  return {std::move(tokens), std::move(parsed.numbers)};
}

std::vector<uint64_t> RuleKeys(const py::str& name, uint32_t rules, bool query) {
  const ParsedName parsed = ParseName(Utf8Of(name));
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
      [](const py::str& query, const py::str& stored, uint32_t rules) {
        return static_cast<int>(MatchNames(ParseName(Utf8Of(query)), ParseName(Utf8Of(stored)), rules));
      },
      py::arg("query"), py::arg("stored"), py::arg("rules"), py::pos_only());
  m.def("rule_keys", &RuleKeys, py::arg("name"), py::arg("rules"), py::arg("query"), py::pos_only());
  m.def(
      "numbers_agree",
      [](const py::str& a, const py::str& b) { return NumbersAgree(ParseName(Utf8Of(a)), ParseName(Utf8Of(b))); },
      py::arg("a"), py::arg("b"), py::pos_only());
  m.def("parse_name", &Parse, py::arg("name"), py::pos_only());
}

}  // namespace pymemstore
