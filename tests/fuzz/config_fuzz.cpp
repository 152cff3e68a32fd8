// Any text as config.json: refused in one line, or a configuration from which everything can be computed.
#include <cstddef>
#include <string_view>

#include "checkpoint/config.h"
#include "checkpoint/inventory.h"
#include "fuzz.h"

namespace mdi {
namespace {

void check_schedule(const ModelConfig& c) {
  for (int layer = 0; layer < c.n_layers; ++layer) {
    const int kv = c.kv_source_of(layer), index = c.index_source_of(layer);
    const auto ratio = [&](int at) { return c.compress_ratios[static_cast<size_t>(at)]; };
    fuzz::require((kv >= 0) == (ratio(layer) > 0), "layers with compressed rows have a source, others none");
    if (kv < 0) continue;
    fuzz::require(kv <= index && index <= layer, "a selection is made from rows that are there");
    fuzz::require(ratio(kv) == ratio(layer) && c.kv_source_of(index) == kv, "sources agree about the rows");
  }
}

void check(std::string_view text) {
  const ModelConfig config = parse_config(text, "config");
  check_schedule(config);
  // The largest lists are bounded but slow to build many times a second.
  if (int64_t{config.n_layers} * config.n_routed_experts + config.dspark_n_routed_experts > 4096) return;
  int64_t total = 0;
  for (const auto& spec : inventory(config)) {
    fuzz::require(spec.bytes() > 0, "every tensor has bytes");
    fuzz::require(!__builtin_add_overflow(total, spec.bytes(), &total), "the sum of all bytes fits");
  }
}

}  // namespace
}  // namespace mdi

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  mdi::fuzz::allow_error([&] { mdi::check({reinterpret_cast<const char*>(data), size}); });
  return 0;
}
