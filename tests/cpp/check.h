// A small test harness: each *_test.cc includes it once and becomes an executable.
//
//   TEST(AddsTwice) { CHECK_OK(table.Add(x)); CHECK_EQ(table.size(), 1); }
//
// Run without arguments for all tests, or with the names of some. A failed check prints file:line and ends its
// test; in another thread than the test's own it is recorded and the thread goes on, since an exception there
// would end the program. Exit code: 0 all passed, 1 some failed, 2 an unknown name.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "pymemstore/status.h"

namespace pymemstore::test {

struct Case {
  const char* name;
  void (*run)();
};

inline std::vector<Case>& Cases() {
  static std::vector<Case> cases;
  return cases;
}

struct Registrar {
  Registrar(const char* name, void (*run)()) { Cases().push_back({name, run}); }
};

struct CheckFailed {};

inline std::atomic<bool> g_failed{false};
inline std::thread::id g_test_thread;

inline void Fail(const char* file, int line, const std::string& what) {
  static std::mutex mu;
  {
    std::lock_guard<std::mutex> lock(mu);
    std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  }
  g_failed = true;
  if (std::this_thread::get_id() == g_test_thread) throw CheckFailed{};
}

template <typename T, typename = void>
struct IsStreamable : std::false_type {};
template <typename T>
struct IsStreamable<T, std::void_t<decltype(std::declval<std::ostream&>() << std::declval<const T&>())>>
    : std::true_type {};
template <typename T, typename = void>
struct IsRange : std::false_type {};
template <typename T>
struct IsRange<T, std::void_t<decltype(std::declval<const T&>().begin(), std::declval<const T&>().end())>>
    : std::true_type {};

template <typename T>
void Print(std::ostream& out, const T& v) {
  if constexpr (std::is_same_v<T, bool>) {
    out << (v ? "true" : "false");
  } else if constexpr (std::is_floating_point_v<T>) {
    out.precision(17);
    out << v;
  } else if constexpr (std::is_integral_v<T>) {
    out << +v;
  } else if constexpr (IsStreamable<T>::value) {
    out << v;
  } else if constexpr (std::is_enum_v<T>) {
    out << +static_cast<std::underlying_type_t<T>>(v);
  } else if constexpr (IsRange<T>::value) {
    out << "{";
    const char* comma = "";
    for (const auto& x : v) {
      out << comma;
      Print(out, x);
      comma = ", ";
    }
    out << "}";
  } else {
    out << "<" << sizeof(T) << " bytes>";
  }
}

// Integers compare by value whatever their signs, so that CHECK_EQ(v.size(), 3) needs no cast.
template <typename A, typename B>
bool Equal(const A& a, const B& b) {
  if constexpr (std::is_integral_v<A> && std::is_integral_v<B>) {
    if constexpr (std::is_signed_v<A> == std::is_signed_v<B>) {
      return a == b;
    } else if constexpr (std::is_signed_v<A>) {
      return a >= 0 && static_cast<std::make_unsigned_t<A>>(a) == b;
    } else {
      return b >= 0 && a == static_cast<std::make_unsigned_t<B>>(b);
    }
  } else {
    return a == b;
  }
}

template <typename A, typename B>
void CheckEqual(const char* file, int line, const char* text, const A& a, const B& b) {
  if (Equal(a, b)) return;
  std::ostringstream out;
  out << "CHECK_EQ(" << text << "): ";
  Print(out, a);
  out << " != ";
  Print(out, b);
  Fail(file, line, out.str());
}

inline void CheckOk(const char* file, int line, const char* text, const Status& s) {
  if (s.ok()) return;
  std::ostringstream out;
  out << "CHECK_OK(" << text << "): code " << static_cast<int>(s.code()) << ": " << s.message();
  Fail(file, line, out.str());
}
template <typename T>
void CheckOk(const char* file, int line, const char* text, const Result<T>& r) {
  CheckOk(file, line, text, r.status());
}

// A folder of its own for a test, removed at the end.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "pymemstore-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) {
      std::perror("mkdtemp");
      std::abort();
    }
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// True when the test passed.
inline bool RunOne(const Case& c) {
  g_failed = false;
  g_test_thread = std::this_thread::get_id();
  try {
    c.run();
  } catch (const CheckFailed&) {
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: exception: %s\n", c.name, e.what());
    g_failed = true;
  }
  std::printf("%s %s\n", g_failed ? "FAILED" : "ok    ", c.name);
  std::fflush(stdout);
  return !g_failed;
}

inline int RunAll(int argc, char** argv) {
  std::vector<Case> chosen;
  for (int i = 1; i < argc; ++i) {
    size_t before = chosen.size();
    for (const Case& c : Cases()) {
      if (std::strcmp(c.name, argv[i]) == 0) chosen.push_back(c);
    }
    if (chosen.size() == before) {
      std::fprintf(stderr, "no test is named %s\n", argv[i]);
      return 2;
    }
  }
  if (argc == 1) chosen = Cases();
  int failed = 0;
  for (const Case& c : chosen) failed += RunOne(c) ? 0 : 1;
  std::printf("%d passed, %d failed\n", static_cast<int>(chosen.size()) - failed, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace pymemstore::test

#define TEST(name)                                                                   \
  static void Test_##name();                                                         \
  static const ::pymemstore::test::Registrar registrar_##name(#name, &Test_##name); \
  static void Test_##name()

#define CHECK(...)                                                                              \
  do {                                                                                          \
    if (!(__VA_ARGS__)) ::pymemstore::test::Fail(__FILE__, __LINE__, "CHECK(" #__VA_ARGS__ ")"); \
  } while (0)
#define CHECK_EQ(...) \
  PMS_TEST_EQ_(#__VA_ARGS__, __VA_ARGS__)
#define PMS_TEST_EQ_(text, ...) ::pymemstore::test::CheckEqual(__FILE__, __LINE__, text, __VA_ARGS__)
#define CHECK_OK(...) ::pymemstore::test::CheckOk(__FILE__, __LINE__, #__VA_ARGS__, (__VA_ARGS__))

int main(int argc, char** argv) { return ::pymemstore::test::RunAll(argc, argv); }
