#include "server/anthropic/signature.h"

#include <sodium.h>

namespace mdi {

namespace {

std::array<unsigned char, crypto_auth_BYTES> mac_of(std::string_view text, const std::array<unsigned char, 32>& key) {
  std::array<unsigned char, crypto_auth_BYTES> mac{};
  crypto_auth(mac.data(), reinterpret_cast<const unsigned char*>(text.data()), text.size(), key.data());
  return mac;
}

}  // namespace

ThinkingSigner::ThinkingSigner() {
  static_assert(crypto_auth_KEYBYTES == 32);
  crypto_auth_keygen(key_.data());
}

std::string ThinkingSigner::sign(std::string_view thinking) const {
  const auto mac = mac_of(thinking, key_);
  std::string text(sodium_base64_ENCODED_LEN(crypto_auth_BYTES, sodium_base64_VARIANT_ORIGINAL), '\0');
  sodium_bin2base64(text.data(), text.size(), mac.data(), mac.size(), sodium_base64_VARIANT_ORIGINAL);
  text.pop_back();  // the zero that it ends with
  return text;
}

bool ThinkingSigner::matches(std::string_view thinking, std::string_view signature) const {
  const std::string own = sign(thinking);
  return own.size() == signature.size() && sodium_memcmp(own.data(), signature.data(), own.size()) == 0;
}

}  // namespace mdi
