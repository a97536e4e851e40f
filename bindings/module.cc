// The extension module pymemstore._core.
#include "bindings.h"
#include "convert.h"

PYBIND11_MODULE(_core, m) {
  using namespace pymemstore;
  m.doc() = "The C++ core of pymemstore. Private: use pymemstore.open.";
  m.attr("__version__") = PYMEMSTORE_VERSION;
  m.attr("RULES_NONE") = kRulesNone;
  m.attr("RULES_CORE") = kRulesCore;
  m.attr("RULES_WIDE") = kRulesWide;
  m.attr("MAX_NAME_BYTES") = kMaxNameBytes;
  m.attr("FORMAT_VERSION") = GetEngineInfo().format_version;
  m.def("kernel", [] {
    const EngineInfo info = GetEngineInfo();
    return py::make_tuple(info.kernel, info.kernel_note);
  });
  m.def(
      "canonical_dot",
      [](const F32Array& a, const F32Array& b) {
        if (a.ndim() != 1 || b.ndim() != 1 || a.size() != b.size())
          Raise(Status::InvalidArgument("canonical_dot takes two vectors of one length"));
        return CanonicalScore(a.data(), b.data(), static_cast<size_t>(a.size()));
      },
      py::arg().noconvert(), py::arg().noconvert(), py::pos_only());
  BindSurface(m);
  BindBatch(m);
  BindStore(m);
  BindMasks(m);
  BindBulk(m);
}
