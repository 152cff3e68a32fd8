// What goes in and comes out of an engine besides token ids: text with stop strings, and prompts with images.
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/synth.h"
#include "serving.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace mdi {
namespace {

using testing::alone;
using testing::request;
using testing::Served;
using testing::slice;
using testing::some_tokens;
using testing::tiny_model;

EngineOptions options(bool draft) {
  EngineOptions o;
  o.slots = 4;
  o.max_length = 250;
  o.max_rows = 64;
  o.draft = o.draft_always = draft;
  o.snapshot_min_tokens = 1;
  return o;
}

const Tokenizer& tokenizer() {
  static const Tokenizer made = Tokenizer::from_json(synthetic_tokenizer(tiny_model().config()), "synthetic");
  return made;
}

// The text of some tokens, without a character that they begin only.
std::string text_of(const std::vector<int32_t>& tokens) {
  Detokenizer detokenizer(tokenizer(), true);
  std::string text;
  for (int32_t token : tokens) text += detokenizer.push(token);
  return text;
}

TEST(Output, TextComesInWholeCharactersAndIsThatOfTheTokens) {
  for (const bool draft : {false, true}) {
    Served served(options(draft), &tokenizer());
    Request r = request(some_tokens(30, 4), 120);
    r.text = true;
    const RequestId id = served.submit(std::move(r));
    served.engine->run();
    EXPECT_EQ(served.answer(id).tokens, alone(some_tokens(30, 4), 120));
    EXPECT_EQ(served.answer(id).text, text_of(served.answer(id).tokens));
    EXPECT_FALSE(served.answer(id).text.empty());
  }
}

// Stops of every length at every place: the text ends before the stop, wherever tokens and drafted blocks cut it.
TEST(Output, AStopStringEndsTheTextBeforeItWhateverCutsIt) {
  const auto prompt = some_tokens(30, 4);
  const std::string whole = text_of(alone(prompt, 60));
  ASSERT_GT(whole.size(), 40u);
  for (const bool draft : {false, true}) {
    for (size_t at = 1; at + 12 < whole.size(); at += 9) {
      Served served(options(draft), &tokenizer());
      Request r = request(prompt, 60);
      const std::string stop = whole.substr(at, 1 + at % 7);
      r.stop = {"never in the text", stop};
      r.text = true;
      std::string shown;
      r.on_event = [&](const Event& event) {
        shown += event.text;
        served.take(event);
      };
      const RequestId id = served.submit(std::move(r));
      served.engine->run();
      EXPECT_EQ(served.answer(id).end, EndReason::kStop);
      EXPECT_EQ(shown, whole.substr(0, whole.find(stop))) << "'" << stop << "', drafts " << draft;
      served.expect_nothing_held();
    }
  }
}

TEST(Output, AStopStringWithoutTextEndsTheTokensAllTheSame) {
  const auto prompt = some_tokens(30, 4);
  const std::string whole = text_of(alone(prompt, 60));
  Served served(options(false), &tokenizer());
  Request r = request(prompt, 60);
  r.stop = {whole.substr(whole.size() / 2, 3)};
  const RequestId id = served.submit(std::move(r));
  served.engine->run();
  EXPECT_EQ(served.answer(id).end, EndReason::kStop);
  EXPECT_LT(served.answer(id).tokens.size(), 60u);
  EXPECT_EQ(served.answer(id).text, "");
}

// ---- images ---------------------------------------------------------------------------------------------------------

const Model& vision_model() {
  static const Model model = testing::load_checkpoint(testing::golden_dir() / "tiny-vision");
  return model;
}

struct ImageRequest {
  std::vector<int32_t> tokens;
  ImageSpans spans;
  std::vector<int32_t> starts;
  std::vector<int64_t> counts;
  std::vector<std::string> files;
};

ImageRequest with_images(const std::vector<int32_t>& ids, std::initializer_list<int> numbers) {
  ImageRequest r;
  for (int i : numbers)
    r.files.push_back(testing::golden_dir() / "tiny-vision" / ("image" + std::to_string(i) + ".png"));
  const auto context = make_cpu_context(1);
  const auto images = load_images(vision_model().config(), r.files);
  ImagePrompt prompt = expand_placeholders(vision_model().config(), ids, images);
  r.spans = encode_images(*context, vision_model(), prompt, images);
  r.tokens = std::move(prompt.tokens);
  r.starts = std::move(prompt.starts);
  for (const PreparedImage& image : images) r.counts.push_back(image.grid.tokens());
  return r;
}

Request as_request(const Engine& engine, const ImageRequest& from, int32_t max_tokens) {
  Request r = request(from.tokens, max_tokens);
  r.images = from.spans;
  for (size_t i = 0; i < from.files.size(); ++i) {
    const std::string& name = from.files[i];  // stands for the file's bytes
    r.image_identities.push_back({.start = from.starts[i],
                                  .count = from.counts[i],
                                  .digest = engine.hasher().digest(std::as_bytes(std::span(name)))});
  }
  return r;
}

// The same ids, other images: each gets its own answer, in whatever chunks, preempted, and from prefix hits.
TEST(Output, PromptsWithImagesAreAnsweredAsAloneAndSharedByTheirBytesOnly) {
  constexpr int32_t kPlaceholder = 251;
  const std::vector<ImageRequest> asked = {
      with_images({5, 9, kPlaceholder, 7, 8, kPlaceholder, 10, 11, 12}, {1, 3}),
      with_images({5, 9, kPlaceholder, 7, 8, kPlaceholder, 10, 11, 12}, {2, 3}),
      with_images({5, 9, kPlaceholder, 7, 8, kPlaceholder, 10, 11, 12}, {1, 3}),
      with_images({kPlaceholder}, {3}),
  };
  const auto context = make_cpu_context(1);
  std::vector<std::vector<int32_t>> expected;
  for (const ImageRequest& r : asked) {
    Generator generator(*context, vision_model(), 250, 512);
    GenerateRequest g;
    g.prompt = r.tokens;
    g.max_tokens = 8;
    g.sampling.temperature = 0;
    g.images = r.spans;
    expected.push_back(generator.run(g).tokens);
  }
  for (const int32_t preempt_every : {0, 3}) {
    EngineOptions o = options(false);
    o.max_rows = 23;
    o.preempt_every = preempt_every;
    o.blocks = 40;
    std::map<std::pair<RequestId, int32_t>, std::vector<int32_t>> answers;
    std::map<RequestId, int32_t> cached;
    Engine engine(*context, vision_model(), nullptr, o);
    for (int round = 0; round < 2; ++round) {
      std::vector<RequestId> ids;
      for (const ImageRequest& r : asked) {
        Request made = as_request(engine, r, 8);
        made.on_event = [&](const Event& event) {
          for (const GeneratedToken& token : event.tokens) answers[{event.request, 0}].push_back(token.id);
          cached[event.request] = event.usage.cached_tokens;
        };
        ids.push_back(engine.submit(std::move(made)).value_or(0));
        // One after the other in the first round, so that a wrong hit would have its chance.
        if (round == 0) engine.run();
      }
      engine.run();
      for (size_t i = 0; i < asked.size(); ++i) {
        EXPECT_EQ((answers[{ids[i], 0}]), expected[i]) << "request " << i << ", round " << round;
      }
      if (round == 0) {
        EXPECT_EQ(cached[ids[1]], 0) << "another image was taken for this one";
        EXPECT_EQ(cached[ids[2]], static_cast<int32_t>(asked[2].tokens.size()) - 1);
      }
    }
  }
}

TEST(Output, ImagesWithoutTheirIdentitiesAreRefused) {
  const ImageRequest r = with_images({5, 251, 9}, {3});
  const auto context = make_cpu_context(1);
  Engine engine(*context, vision_model(), nullptr, options(false));
  const auto refuses = [&engine](Request made) { EXPECT_ANY_THROW(engine.submit(std::move(made))); };
  Request none = as_request(engine, r, 4);
  none.image_identities.clear();
  refuses(std::move(none));
  Request shorter = as_request(engine, r, 4);
  --shorter.image_identities[0].count;
  refuses(std::move(shorter));
  Request outside = as_request(engine, r, 4);
  outside.image_identities[0].start = 1000;
  refuses(std::move(outside));
  EXPECT_EQ(engine.metrics().refused_invalid, 3);
}

}  // namespace
}  // namespace mdi
