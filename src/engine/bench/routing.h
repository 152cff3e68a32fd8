// Which experts the tokens of all ranks choose, for a benchmark of one rank: its own gate sees only its own rows, and
// the load of its experts comes from everybody's.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace mdi::bench {

enum class Routing : uint8_t {
  kRandom,    // every set of topk different experts is as likely as any other
  kBalanced,  // every expert gets the same number of tokens, or one more
  kSkewed,    // experts' popularity falls as rank^-0.5 in a random order, drawn without repetition
};
const char* routing_name(Routing routing);
// Throws mdi::Error for another name.
Routing routing_from_name(std::string_view name);

// [tokens, topk] experts of 0..experts-1, different within a token. 1 <= topk <= experts.
std::vector<int32_t> make_routing(Routing routing, int64_t tokens, int32_t topk, int32_t experts, uint64_t seed);

// What experts [first, first + count) get of it.
struct ExpertLoad {
  int64_t rows = 0, active = 0, most = 0;  // rows of all; experts that have any; the fullest expert's
};
ExpertLoad expert_load(const std::vector<int32_t>& index, int32_t first, int32_t count);

}  // namespace mdi::bench
