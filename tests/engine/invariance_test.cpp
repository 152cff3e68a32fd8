// The same tokens whatever else happens: 64 mixed requests alone, batched, chunked in three ways, preempted, with and
// without prefix hits, forked, with drafts (greedy), with a latency target (mixed_requests.h).
#include <gtest/gtest.h>

#include "mixed_requests.h"

namespace mdi {
namespace {

using testing::forked_samples;
using testing::kMixed;
using testing::mixed_alone;
using testing::mixed_prompt;
using testing::mixed_sampling;
using testing::mixed_tokens;
using testing::mixed_variants;
using testing::MixedRun;
using testing::MixedVariant;
using testing::run_mixed;
using testing::tiny_model;

Context& context() {
  static const std::unique_ptr<CpuContext> made = make_cpu_context(1);
  return *made;
}

const std::vector<std::vector<int32_t>>& expected(bool greedy) {
  static const auto sampled = mixed_alone(context(), tiny_model(), false);
  static const auto plain = mixed_alone(context(), tiny_model(), true);
  return greedy ? plain : sampled;
}

void check_every_way(bool greedy) {
  int ways = 0;
  for (const MixedVariant& variant : mixed_variants()) {
    if (variant.greedy != greedy) continue;
    SCOPED_TRACE(variant.name);
    const MixedRun run = run_mixed(context(), tiny_model(), variant, expected(greedy));
    EXPECT_EQ(run.wrong, 0) << run.first_wrong;
    EXPECT_TRUE(run.clean);
    if (variant.missing) {
      EXPECT_EQ(variant.missing(run.metrics), "");
    }
    ++ways;
  }
  EXPECT_GT(ways, 2);
}

TEST(Invariance, EveryWayGivesTheTokensOfEachRequestAlone) { check_every_way(false); }

TEST(Invariance, WithDraftsTooEveryWayGivesTheTokensOfEachRequestAlone) { check_every_way(true); }

TEST(Invariance, GreedyAndSampledRequestsDiffer) {
  int different = 0;
  for (size_t i = 1; i < kMixed; i += 2) different += expected(true)[i] != expected(false)[i] ? 1 : 0;
  EXPECT_GT(different, kMixed / 4) << "the sampled requests test nothing that the greedy ones do not";
}

TEST(Invariance, ForkedSamplesAreTheSameWithAndWithoutRoom) {
  for (const float temperature : {0.0f, 1.0f}) {
    const SamplingParams sampling{.temperature = temperature, .seed = 4};
    const auto roomy = forked_samples(context(), tiny_model(), 8, 0, sampling);
    for (const auto& sample : roomy) ASSERT_EQ(sample.size(), 20u);
    EXPECT_EQ(forked_samples(context(), tiny_model(), 2, 0, sampling), roomy);
    EXPECT_EQ(forked_samples(context(), tiny_model(), 6, 6, sampling), roomy);
    EXPECT_EQ(forked_samples(context(), tiny_model(), 1, 6, sampling), roomy);
    // The first sample is the request alone; others differ where there is a choice.
    Generator generator(context(), tiny_model(), testing::kMixedLength, 512);
    GenerateRequest r;
    r.prompt = mixed_prompt(10);
    r.max_tokens = 20;
    r.sampling = sampling;
    EXPECT_EQ(roomy[0], generator.run(r).tokens);
    EXPECT_EQ(roomy[0] == roomy[1], temperature == 0.0f);
  }
}

}  // namespace
}  // namespace mdi
