// Batch: operations for one transaction.
#include <memory>

#include "bindings.h"
#include "convert.h"

namespace pymemstore {
namespace {

Kind KindOf(bool relation) { return relation ? Kind::kRelation : Kind::kEntity; }

void SetDim(Batch* batch, Kind kind, uint32_t dim) {
  uint32_t& known = batch->dim[Index(kind)];
  if (known && known != dim)
    Raise(Status::InvalidArgument(std::string(KindName(kind)) + " vectors of dimensions " + std::to_string(known) +
                                  " and " + std::to_string(dim) + " in one batch"));
  known = dim;
}

// An entry whose operands are all texts.
void AddTexts(Batch* batch, OpType type, Kind kind, std::initializer_list<std::pair<const char*, py::handle>> texts) {
  std::vector<Slice> names;
  for (const auto& [what, object] : texts) names.push_back(batch->Intern(Utf8(object, what)));
  batch->Add(type, kind).names = std::move(names);
}

Slice InternSource(Batch* batch, const py::object& source, const std::string& what) {
  const std::string_view text = Utf8(source, what);
  if (text.empty()) Raise(Status::InvalidArgument(what + " is empty"));  // a slice of size 0 means none
  return batch->Intern(text);
}

void AddTriples(Batch* batch, const py::sequence& triples, const py::object& source) {
  static const char* kParts[] = {"subject", "relation", "object"};
  std::vector<Slice> names, sources;
  const py::object fast = py::reinterpret_steal<py::object>(PySequence_Fast(triples.ptr(), "expected a sequence of triples"));
  if (!fast) throw py::error_already_set();
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(fast.ptr());
  names.reserve(3 * static_cast<size_t>(n));
  for (Py_ssize_t i = 0; i < n; ++i) {
    const py::handle item = PySequence_Fast_GET_ITEM(fast.ptr(), i);
    const std::string label = "triple " + std::to_string(i);
    const py::object parts =
        PyUnicode_Check(item.ptr()) ? py::object()
                                    : py::reinterpret_steal<py::object>(PySequence_Fast(item.ptr(), ""));
    if (!parts) {
      PyErr_Clear();
      Raise(Status::InvalidArgument(label + " is " + Py_TYPE(item.ptr())->tp_name + ", expected (subject, relation, object)"));
    }
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(parts.ptr());
    if (size != 3) Raise(Status::InvalidArgument(label + " has " + std::to_string(size) + " parts, expected 3"));
    for (Py_ssize_t k = 0; k < 3; ++k)
      names.push_back(batch->Intern(Utf8(PySequence_Fast_GET_ITEM(parts.ptr(), k), label + ", " + kParts[k])));
  }
  if (PyUnicode_Check(source.ptr())) {
    sources.push_back(InternSource(batch, source, "source"));
  } else if (!source.is_none()) {
    const py::sequence list = source;
    if (static_cast<Py_ssize_t>(list.size()) != n)
      Raise(Status::InvalidArgument(std::to_string(list.size()) + " sources for " + std::to_string(n) + " triples"));
    for (size_t i = 0; i < list.size(); ++i) {
      const py::object one = list[i];
      sources.push_back(one.is_none() ? Slice{} : InternSource(batch, one, "source " + std::to_string(i)));
    }
  }
  Op& op = batch->Add(OpType::kAdd);
  op.names = std::move(names);
  // One source for all must stay told from a source for each when there is one triple; both mean the same then.
  op.sources = std::move(sources);
}

}  // namespace

void BindBatch(py::module_& m) {
  py::class_<Batch, WithoutGil<Batch>>(m, "Batch", py::is_final())
      .def(py::init<>())
      .def("__len__", &Batch::size)
      .def("add", &AddTriples, py::arg("triples"), py::arg("source") = py::none(), py::pos_only())
      .def(
          "replace",
          [](Batch& b, const py::object& s, const py::object& r, const py::object& o, const py::object& source) {
            AddTexts(&b, OpType::kReplace, Kind::kEntity, {{"subject", s}, {"relation", r}, {"object", o}});
            if (source.is_none()) return;
            try {
              const Slice text = InternSource(&b, source, "source");
              b.mutable_last().sources.push_back(text);
            } catch (...) {
              b.DropLast();
              throw;
            }
          },
          py::arg(), py::arg(), py::arg(), py::arg() = py::none(), py::pos_only())
      .def(
          "remove",
          [](Batch& b, const py::object& s, const py::object& r, const py::object& o) {
            AddTexts(&b, OpType::kRemove, Kind::kEntity, {{"subject", s}, {"relation", r}, {"object", o}});
          },
          py::arg(), py::arg(), py::arg(), py::pos_only())
      .def(
          "forget",
          [](Batch& b, const py::object& entity) { AddTexts(&b, OpType::kForget, Kind::kEntity, {{"entity", entity}}); },
          py::arg(), py::pos_only())
      .def(
          "alias",
          [](Batch& b, const py::object& alias, const py::object& name, bool relation) {
            AddTexts(&b, OpType::kAlias, KindOf(relation), {{"alias", alias}, {"name", name}});
          },
          py::arg(), py::arg(), py::arg(), py::pos_only())
      .def(
          "unalias",
          [](Batch& b, const py::object& alias, const py::object& name, bool relation) {
            AddTexts(&b, OpType::kUnalias, KindOf(relation), {{"alias", alias}, {"name", name}});
          },
          py::arg(), py::arg(), py::arg(), py::pos_only())
      .def(
          "rename",
          [](Batch& b, const py::object& old, const py::object& name, bool relation) {
            AddTexts(&b, OpType::kRename, KindOf(relation), {{"old name", old}, {"new name", name}});
          },
          py::arg(), py::arg(), py::arg(), py::pos_only())
      .def(
          "add_names",
          [](Batch& b, const py::sequence& names, bool relation) {
            std::vector<Slice> slices;
            for (const std::string& name : Utf8List(names, "name")) slices.push_back(b.Intern(name));
            b.Add(OpType::kAddNames, KindOf(relation)).names = std::move(slices);
          },
          py::arg(), py::arg(), py::pos_only())
      .def(
          "set_vectors",
          [](Batch& b, const py::sequence& names, const F32Array& vectors, bool relation) {
            const std::vector<std::string> texts = Utf8List(names, "name");
            Vectors v = ToUnitVectors(vectors, "vectors", static_cast<ssize_t>(texts.size()));
            SetDim(&b, KindOf(relation), v.dim);
            std::vector<Slice> slices;
            for (const std::string& name : texts) slices.push_back(b.Intern(name));
            Op& op = b.Add(OpType::kSetVectors, KindOf(relation));
            op.names = std::move(slices);
            op.vectors = std::move(v.data);
          },
          py::arg(), py::arg().noconvert(), py::arg(), py::pos_only())
      .def(
          "external_id",
          [](Batch& b, const py::object& external_id, const py::object& name, bool relation) {
            AddTexts(&b, OpType::kExternalId, KindOf(relation), {{"external id", external_id}, {"name", name}});
          },
          py::arg(), py::arg(), py::arg(), py::pos_only())
      .def(
          "supply_vectors",
          [](Batch& b, const py::sequence& names, const F32Array& vectors, bool relation) {
            const std::vector<std::string> texts = Utf8List(names, "name");
            const Vectors v = ToUnitVectors(vectors, "vectors", static_cast<ssize_t>(texts.size()));
            if (texts.empty()) return;
            SetDim(&b, KindOf(relation), v.dim);
            ReleaseGil release;  // copies up to gigabytes
            for (size_t i = 0; i < texts.size(); ++i)
              b.Supply(KindOf(relation), texts[i], v.data.data() + i * v.dim, v.dim);
          },
          "Vectors for names that are new, or have none yet, when the batch is applied. No entry, no result.",
          py::arg(), py::arg().noconvert(), py::arg(), py::pos_only());
}

}  // namespace pymemstore
