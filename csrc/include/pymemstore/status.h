// Status and Result<T>: how every layer of the core reports failure. No exception leaves csrc/.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace pymemstore {

// One code per class of error that a caller can act on. bindings/errors.cc maps each to a Python
// exception. The numbers are not stored anywhere.
enum class Code {
  kOk = 0,
  kInvalidArgument,   // the caller's input is wrong
  kNotFound,          // no such store, name, triple
  kCorruption,        // a file is damaged or not ours
  kVersionMismatch,   // a newer format than this library reads
  kEmbedderMismatch,  // the store was made with another embedder
  kMapFull,           // the LMDB map cannot grow
  kLocked,            // another writer holds the store
  kReadOnly,          // a write on a read-only handle
  kClosed,            // the handle is closed, or was inherited over a fork
  kIOError,           // the operating system refused (disk full, permissions, ...)
  kInterrupted,       // the caller asked to stop
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return {}; }
  static Status InvalidArgument(std::string m) { return {Code::kInvalidArgument, std::move(m)}; }
  static Status NotFound(std::string m) { return {Code::kNotFound, std::move(m)}; }
  static Status Corruption(std::string m) { return {Code::kCorruption, std::move(m)}; }
  static Status VersionMismatch(std::string m) { return {Code::kVersionMismatch, std::move(m)}; }
  static Status EmbedderMismatch(std::string m) { return {Code::kEmbedderMismatch, std::move(m)}; }
  static Status MapFull(std::string m) { return {Code::kMapFull, std::move(m)}; }
  static Status Locked(std::string m) { return {Code::kLocked, std::move(m)}; }
  static Status ReadOnly(std::string m) { return {Code::kReadOnly, std::move(m)}; }
  static Status Closed(std::string m) { return {Code::kClosed, std::move(m)}; }
  static Status IOError(std::string m, int error_number = 0) {
    Status s{Code::kIOError, std::move(m)};
    s.errno_ = error_number;
    return s;
  }
  static Status Interrupted() { return {Code::kInterrupted, "interrupted"}; }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  int error_number() const { return errno_; }  // errno of an IOError, else 0

 private:
  Code code_ = Code::kOk;
  int errno_ = 0;
  std::string message_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : v_(std::move(value)) {}            // NOLINT: implicit by design
  Result(Status status) : v_(std::move(status)) {}     // NOLINT: implicit by design

  bool ok() const { return std::holds_alternative<T>(v_); }
  Status status() const { return ok() ? Status::Ok() : std::get<Status>(v_); }
  T& value() { return std::get<T>(v_); }
  const T& value() const { return std::get<T>(v_); }
  T& operator*() { return value(); }
  T* operator->() { return &value(); }

 private:
  std::variant<T, Status> v_;
};

#define PMS_RETURN_IF_ERROR(expr)                   \
  do {                                              \
    ::pymemstore::Status pms_status_ = (expr);      \
    if (!pms_status_.ok()) return pms_status_;      \
  } while (0)

#define PMS_CONCAT_INNER(a, b) a##b
#define PMS_CONCAT(a, b) PMS_CONCAT_INNER(a, b)
#define PMS_ASSIGN_OR_RETURN(lhs, expr)                                     \
  auto PMS_CONCAT(pms_result_, __LINE__) = (expr);                          \
  if (!PMS_CONCAT(pms_result_, __LINE__).ok())                              \
    return PMS_CONCAT(pms_result_, __LINE__).status();                      \
  lhs = std::move(*PMS_CONCAT(pms_result_, __LINE__))

}  // namespace pymemstore
