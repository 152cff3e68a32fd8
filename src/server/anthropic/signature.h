// The signature of a thinking block: a keyed hash of its text, so that the server can tell what it wrote from what was
// written or changed elsewhere. It proves no more than that, and hides nothing.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace mdi {

class ThinkingSigner {
 public:
  ThinkingSigner();  // a random key: signatures of another run do not match

  // Base64 of HMAC-SHA-512/256.
  std::string sign(std::string_view thinking) const;
  // In constant time.
  bool matches(std::string_view thinking, std::string_view signature) const;

 private:
  std::array<unsigned char, 32> key_{};
};

}  // namespace mdi
