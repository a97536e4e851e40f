// The one table from status codes to the exceptions of pymemstore.errors.
#include "convert.h"

namespace pymemstore {
namespace {

struct Row {
  Code code;
  const char* exception;
};
constexpr Row kRows[] = {
    {Code::kInvalidArgument, "InvalidArgument"},
    {Code::kNotFound, "NotFound"},
    {Code::kCorruption, "Corruption"},
    {Code::kVersionMismatch, "VersionMismatch"},
    {Code::kEmbedderMismatch, "EmbedderMismatch"},
    {Code::kMapFull, "MapFull"},
    {Code::kLocked, "Locked"},
    {Code::kReadOnly, "ReadOnly"},
    {Code::kClosed, "Closed"},
    {Code::kIOError, "IOError"},
    {Code::kInterrupted, "Interrupted"},
};

}  // namespace

void Raise(const Status& status) {
  // A signal handler's own exception (KeyboardInterrupt) says more than Interrupted.
  if (PyErr_Occurred()) throw py::error_already_set();
  const char* name = "MemstoreError";
  for (const Row& row : kRows)
    if (row.code == status.code()) name = row.exception;
  const py::object type = py::module_::import("pymemstore.errors").attr(name);
  // Text of the operating system, or of a damaged store, need not be UTF-8.
  const py::object message = py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
      status.message().data(), static_cast<Py_ssize_t>(status.message().size()), "backslashreplace"));
  if (status.code() == Code::kIOError && status.error_number() != 0) {
    PyErr_SetObject(type.ptr(), py::make_tuple(status.error_number(), message).ptr());
  } else {
    PyErr_SetObject(type.ptr(), message.ptr());
  }
  throw py::error_already_set();
}

}  // namespace pymemstore
