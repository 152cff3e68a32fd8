// Generation with bounded replay: the tokens depend on where prompts ended, on nothing else.
#include <gtest/gtest.h>

#include "../model/tiny_model.h"
#include "core/error.h"
#include "engine/generator.h"

namespace mdi {
namespace {

using testing::slice;
using testing::some_tokens;
using testing::tiny_model;

std::vector<int32_t> run(Generator& generator, const std::vector<int32_t>& prompt, bool draft = false,
                         const GenerateCallbacks& callbacks = {}) {
  GenerateRequest request;
  request.prompt = prompt;
  request.max_tokens = 24;
  request.sampling.temperature = 0;
  request.draft = draft;
  return generator.run(request, callbacks).tokens;
}

struct Setting {
  int32_t chunk;
  ReplayForm form;
  bool draft;
};
constexpr Setting kSettings[] = {{512, ReplayForm::kAfterLastSource, false},
                                 {512, ReplayForm::kFromLastSource, false},
                                 {50, ReplayForm::kFromLastSource, false},
                                 {7, ReplayForm::kAfterLastSource, true},
                                 {512, ReplayForm::kFromLastSource, true}};

// Two turns of a conversation: the second prompt goes on behind the first answer.
std::vector<int32_t> two_turns(const ReplaySettings& replay, int32_t chunk, bool draft) {
  const auto context = make_cpu_context(2);
  Generator generator(*context, tiny_model(), 600, chunk, replay);
  auto tokens = some_tokens(200, 5);
  auto answer = run(generator, tokens, draft);
  tokens.insert(tokens.end(), answer.begin(), answer.end());
  for (const int32_t token : some_tokens(90, 6)) tokens.push_back(token);
  const auto second = run(generator, tokens, draft);
  answer.insert(answer.end(), second.begin(), second.end());
  return answer;
}

TEST(GeneratorReplay, ChunksFormsAndDraftsGiveTheSameTokens) {
  const auto expected = two_turns({.rows = 16, .form = kSettings[0].form}, kSettings[0].chunk, kSettings[0].draft);
  for (const Setting& s : kSettings) {
    EXPECT_EQ(two_turns({.rows = 16, .form = s.form}, s.chunk, s.draft), expected) << s.chunk << s.draft;
  }
}

TEST(GeneratorReplay, ShortPromptsAreExact) {
  const auto context = make_cpu_context(2);
  Generator exact(*context, tiny_model(), 600, 512), replayed(*context, tiny_model(), 600, 512, {.rows = 200});
  EXPECT_EQ(run(exact, some_tokens(200, 5)), run(replayed, some_tokens(200, 5)));
}

TEST(GeneratorReplay, ACancelledPrefillLeavesNothingBehind) {
  const auto context = make_cpu_context(2);
  const auto prompt = some_tokens(200, 5);
  Generator generator(*context, tiny_model(), 600, 64, {.rows = 16}),
      cold(*context, tiny_model(), 600, 64, {.rows = 16});
  run(generator, slice(prompt, 0, 40));
  GenerateCallbacks cancel;
  cancel.on_prefill = [](int64_t done, int64_t) { return done < 100; };
  EXPECT_TRUE(run(generator, prompt, false, cancel).empty());
  EXPECT_EQ(run(generator, slice(prompt, 0, 150)), run(cold, slice(prompt, 0, 150)));
}

TEST(GeneratorReplay, RefusesANegativeCount) {
  const auto context = make_cpu_context(1);
  EXPECT_THROW(Generator(*context, tiny_model(), 600, 64, {.rows = -1}), Error);
}

}  // namespace
}  // namespace mdi
