// Token masks for constrained decoding.
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings.h"
#include "convert.h"
#include "pymemstore/token_masks.h"

namespace pymemstore {
namespace {

template <typename Fn>
auto Without(Fn&& fn) {
  ReleaseGil release;
  return fn();
}

std::shared_ptr<Vocabulary> MakeVocabulary(const py::sequence& tokens) {
  std::vector<std::string> list;
  list.reserve(tokens.size());
  for (const py::handle token : tokens) {
    if (token.is_none()) {
      list.emplace_back();
    } else if (PyBytes_Check(token.ptr())) {
      list.emplace_back(PyBytes_AS_STRING(token.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(token.ptr())));
    } else {
      Raise(Status::InvalidArgument("token " + std::to_string(list.size()) + ": expected bytes or None"));
    }
  }
  return std::const_pointer_cast<Vocabulary>(Unwrap(Without([&] { return Vocabulary::Make(list); })));
}

std::shared_ptr<NameSet> MakeSpans(const py::object& text, const std::vector<uint32_t>& starts,
                                   const std::vector<uint32_t>& ends, size_t max_bytes, const Vocabulary& vocabulary) {
  std::string copy(Utf8(text, "text"));
  auto index = Without([&] { return NameIndex::MakeSpans(std::move(copy), starts, ends, max_bytes, vocabulary); });
  return std::make_shared<NameSet>(Unwrap(std::move(index)));
}

}  // namespace

void BindMasks(py::module_& m) {
  py::class_<Vocabulary, std::shared_ptr<Vocabulary>>(m, "Vocabulary")
      .def(py::init(&MakeVocabulary), py::arg("tokens"), py::pos_only())
      .def("__len__", &Vocabulary::size)
      .def_property_readonly("complete", &Vocabulary::complete)
      .def("spells", [](const Vocabulary& v, const py::object& text) { return v.Spells(Utf8(text, "text")); },
           py::arg(), py::pos_only())
      .def(
          "token",
          [](const Vocabulary& v, uint32_t token) -> py::object {
            if (token >= v.size()) Raise(Status::InvalidArgument("no token " + std::to_string(token)));
            if (v.bytes(token).empty()) return py::none();
            return py::bytes(v.bytes(token).data(), v.bytes(token).size());
          },
          py::arg(), py::pos_only());

  py::class_<NameSet, std::shared_ptr<NameSet>>(m, "NameSet")
      .def(py::init<>())
      .def_static("spans", &MakeSpans, py::arg("text"), py::arg("starts"), py::arg("ends"), py::arg("max_bytes"),
                  py::arg("vocabulary"), py::pos_only())
      .def("__len__", [](const NameSet& set) { return set.view()->size(); })
      .def_property_readonly("memory",
                             [](const NameSet& set) {
                               const auto view = set.view();
                               return view->base().memory() + view->delta().memory() + 4 * view->removed().capacity();
                             })
      .def(
          "update",
          [](NameSet& set, const py::sequence& added, const py::sequence& removed) {
            const std::vector<std::string> in = Utf8List(added, "added"), out = Utf8List(removed, "removed");
            Check(Without([&] { return set.Update(in, out); }));
          },
          py::arg("added"), py::arg("removed"), py::pos_only());

  py::class_<CallGuide>(m, "CallGuide")
      .def_property_readonly("done", &CallGuide::done)
      .def_property_readonly("to_end", &CallGuide::to_end)
      .def(
          "mask",
          [](CallGuide& guide, py::array_t<bool, py::array::c_style> out) {
            if (out.ndim() != 1 || static_cast<size_t>(out.size()) != guide.vocabulary_size())
              Raise(Status::InvalidArgument("mask takes a bool array of the vocabulary's size"));
            guide.Mask(out.mutable_data());
          },
          py::arg().noconvert(), py::pos_only())
      .def("advance", [](CallGuide& guide, uint32_t token) { Check(guide.Advance(token)); }, py::arg(),
           py::pos_only());

  py::class_<CallMasks>(m, "CallMasks")
      .def(py::init([](std::shared_ptr<Vocabulary> vocabulary, bool write, std::shared_ptr<NameSet> entities,
                       std::shared_ptr<NameSet> relations, uint32_t max_parts, uint32_t max_name_bytes,
                       bool allow_empty) {
             CallOptions options;
             options.write = write;
             options.max_parts = max_parts;
             options.max_name_bytes = max_name_bytes;
             options.allow_empty = allow_empty;
             return Unwrap(CallMasks::Make(std::move(vocabulary), options, std::move(entities), std::move(relations)));
           }),
           py::arg("vocabulary").none(false), py::kw_only(), py::arg("write"), py::arg("entities"),
           py::arg("relations"), py::arg("max_parts"), py::arg("max_name_bytes"), py::arg("allow_empty"))
      .def_property_readonly("unspelled", &CallMasks::unspelled)
      .def(
          "start",
          [](CallMasks& masks, const py::object& prefix, std::optional<uint32_t> max_tokens) {
            const std::string text(Utf8(prefix, "prefix"));
            return Unwrap(Without([&] { return masks.Start(text, max_tokens.value_or(CallMasks::kNoBudget)); }));
          },
          py::arg("prefix"), py::arg("max_tokens"), py::pos_only());
}

}  // namespace pymemstore
