// Any text as tokenizer.json: refused in one line, or a tokenizer that gives back what it is given.
#include <cstddef>
#include <string>
#include <string_view>

#include "fuzz.h"
#include "text/engram_map.h"
#include "text/tokenizer.h"

namespace mdi {
namespace {

void check(std::string_view json) {
  const Tokenizer tokenizer = Tokenizer::from_json(json, "tokenizer");
  const std::string text =
      "Hello, world! it's 12345 años\n\n  \t東京タワー・ｱ e\u0301 👍🏽 <end><|user|> \u00a0\u3000x\r\n" +
      std::string(200, 'l');
  for (const Markers markers : {Markers::kTokens, Markers::kText}) {
    const auto ids = tokenizer.encode(text, markers);
    fuzz::require(ids.size() <= text.size(), "no more tokens than bytes");
    // An added token whose name is spelled in the byte-level alphabet decodes to those bytes, as in the reference.
    if (markers == Markers::kText) fuzz::require(tokenizer.decode(ids) == text, "text comes back");
  }
  const EngramMap map = engram_token_map(tokenizer);
  fuzz::require(map.ids.size() == static_cast<size_t>(tokenizer.size()), "every token is in the map");
}

}  // namespace
}  // namespace mdi

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  mdi::fuzz::allow_error([&] { mdi::check({reinterpret_cast<const char*>(data), size}); });
  return 0;
}
