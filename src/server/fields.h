// Reading a request's body: every member is asked for by name, with its type and range, and what nobody has asked for
// is an error. An error names the member by its path.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "text/ordered_json.h"

namespace mdi {

// Of a body, checked while it is read, before a tree of it exists.
inline constexpr int kMaxBodyDepth = 64;
inline constexpr int64_t kMaxBodyValues = 1'500'000;  // a prompt of a million token ids has room

// Throws ApiError (400): not JSON, too deep, too many values, a key twice in an object, not an object. Keep it in a
// JsonTree.
OrderedJson parse_body(const std::string& body);

// The members of one object. A member that is null counts as absent.
class Fields {
 public:
  // path: of the object, empty for the body itself. The value outlives the reader. Throws ApiError unless it is an
  // object.
  Fields(const OrderedJson& value, std::string path);

  // Null: absent. Counts as asked for, as with all below.
  const OrderedJson* find(const char* key);
  // "PATH.key"
  std::string path_of(std::string_view key) const;

  std::optional<bool> boolean(const char* key);
  std::optional<int64_t> integer(const char* key, int64_t least, int64_t most);
  std::optional<double> number(const char* key, double least, double most);
  std::optional<std::string> string(const char* key, size_t most_bytes);
  // One of these words.
  std::optional<std::string> word(const char* key, std::initializer_list<const char*> words);
  // A string, or a list of strings; each of 1 to most_bytes bytes.
  std::vector<std::string> strings(const char* key, size_t most, size_t most_bytes);
  const OrderedJson* object(const char* key);
  const OrderedJson* list(const char* key, size_t least, size_t most);

  // "expected EXPECTED, found VALUE" about a member.
  [[noreturn]] void refuse(const char* key, const std::string& expected) const;

  // Members that are taken and do nothing.
  void ignore(std::initializer_list<const char*> keys);
  // Members that would change the answer and that this server cannot do.
  void unsupported(const char* key, const std::string& why);
  // Throws ApiError for the first member that was not asked for.
  void done() const;

 private:
  const OrderedJson& value_;
  std::string path_;
  std::vector<std::string_view> known_;
};

// "a string", "an object" ... or the value itself where it is short: for messages.
std::string describe_value(const OrderedJson& value);

}  // namespace mdi
