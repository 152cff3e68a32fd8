// Stories about requests with images that the engine itself encodes: they are what requests with embedded rows are, and
// nobody else waits for more than one image.
#include <gtest/gtest.h>

#include <functional>

#include "core/error.h"
#include "serving.h"

namespace mdi {
namespace {

using testing::Answer;
using testing::request;

constexpr int32_t kPlaceholder = 251;

const testing::fs::path& folder() {
  static const testing::fs::path path = testing::golden_dir() / "tiny-vision";
  return path;
}

const Model& vision_model() {
  static const Model model = testing::load_checkpoint(folder());
  return model;
}

std::vector<PreparedImage> pictures(std::initializer_list<int> numbers) {
  std::vector<std::string> files;
  for (int i : numbers) files.push_back(folder() / ("image" + std::to_string(i) + ".png"));
  return load_images(vision_model().config(), files);
}

EngineOptions sizes(int32_t snapshots) {
  EngineOptions options;
  options.slots = 4;
  options.max_length = 250;
  options.snapshots = snapshots;
  options.snapshot_min_tokens = 1;
  return options;
}

struct Show {
  std::unique_ptr<CpuContext> context = make_cpu_context(1);
  Engine engine;
  explicit Show(int32_t snapshots = 16) : engine(*context, vision_model(), nullptr, sizes(snapshots)) {}

  // A prompt with an image for each placeholder; `digest` of each image is that of its number.
  Request of(const std::vector<int32_t>& ids, std::initializer_list<int> numbers) const {
    std::vector<PreparedImage> shown = pictures(numbers);
    ImagePrompt p = expand_placeholders(vision_model().config(), ids, shown);
    Request r = request(p.tokens, 6);
    for (const TokenType type : p.types) r.images.dead.push_back(type == TokenType::kText ? 0 : 1);
    size_t i = 0;
    for (const int number : numbers) {
      r.image_identities.push_back({.start = p.starts[i],
                                    .count = shown[i].grid.tokens(),
                                    .digest = engine.hasher().digest(std::as_bytes(std::span(&number, 1)))});
      ++i;
    }
    r.pictures = std::move(shown);
    return r;
  }
  Answer answer(Request r) {
    Answer a;
    submit(std::move(r), a);
    engine.run();
    return a;
  }
  void submit(Request r, Answer& a) {
    r.on_event = [&a](const Event& event) {
      for (const GeneratedToken& token : event.tokens) a.tokens.push_back(token.id);
      a.error = event.error;
      a.end = event.end;
      a.usage = event.usage;
    };
    ASSERT_TRUE(engine.submit(std::move(r)).has_value());
  }
  void expect_nothing_held() const {
    const EngineMetrics m = engine.metrics();
    EXPECT_EQ(m.waiting + m.running, 0);
    EXPECT_EQ(m.slots_free, m.slots_total);
    EXPECT_EQ(m.blocks_free + m.blocks_idle, m.blocks_total);
  }
};

const std::vector<int32_t> kTwoImages = {5, 9, kPlaceholder, 7, 8, kPlaceholder, 10, 11, 12};

TEST(ImageRequests, PicturesGiveWhatEmbeddedRowsGive) {
  Show encoding(0), embedded(0);
  const Answer pictured = encoding.answer(encoding.of(kTwoImages, {1, 3}));
  Request r = embedded.of(kTwoImages, {1, 3});
  const auto context = make_cpu_context(1);
  const ImagePrompt p = expand_placeholders(vision_model().config(), kTwoImages, r.pictures);
  r.images = encode_images(*context, vision_model(), p, r.pictures);
  r.pictures.clear();
  const Answer given = embedded.answer(std::move(r));
  EXPECT_EQ(pictured.tokens.size(), 6u);
  EXPECT_EQ(pictured.tokens, given.tokens);
  const Answer other = encoding.answer(encoding.of(kTwoImages, {3, 1}));
  EXPECT_NE(pictured.usage.prompt_tokens, 0);
  EXPECT_EQ(other.usage.prompt_tokens, pictured.usage.prompt_tokens);
  encoding.expect_nothing_held();
}

TEST(ImageRequests, TheSameImagesAgainAreFoundAndNotEncodedAgain) {
  Show show;
  const Answer first = show.answer(show.of(kTwoImages, {1, 4}));
  EXPECT_EQ(show.engine.metrics().images_encoded, 2);
  const Answer again = show.answer(show.of(kTwoImages, {1, 4}));
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_EQ(again.usage.cached_tokens, again.usage.prompt_tokens - 1);
  EXPECT_EQ(show.engine.metrics().images_encoded, 2);
  EXPECT_EQ(show.engine.metrics().images_kept, 2);
  // 1 and 4 have the same grid: the ids are the same, the images are not.
  const Answer swapped = show.answer(show.of(kTwoImages, {4, 1}));
  EXPECT_LE(swapped.usage.cached_tokens, 2);
  EXPECT_EQ(show.engine.metrics().images_kept, 4);
}

TEST(ImageRequests, WhoDecodesWaitsForOneImageAStep) {
  Show show;
  Answer text, shown;
  Request plain = request({5, 6, 7}, 40);
  show.submit(plain, text);
  ASSERT_TRUE(show.engine.step());
  show.submit(show.of(kTwoImages, {1, 3}), shown);
  const size_t before = text.tokens.size();
  ASSERT_TRUE(show.engine.step());
  EXPECT_EQ(show.engine.metrics().images_encoded, 1);
  EXPECT_GT(text.tokens.size(), before);
  EXPECT_EQ(show.engine.metrics().waiting, 1);
  ASSERT_TRUE(show.engine.step());
  EXPECT_EQ(show.engine.metrics().images_encoded, 2);
  show.engine.run();
  EXPECT_EQ(shown.tokens.size(), 6u);
  EXPECT_EQ(text.tokens.size(), 40u);
}

TEST(ImageRequests, ACancelledOneIsGoneBeforeItsSecondImage) {
  Show show;
  Answer shown;
  Request r = show.of(kTwoImages, {1, 3});
  r.on_event = [&shown](const Event& event) { shown.end = event.end; };
  const RequestId id = show.engine.submit(std::move(r)).value();
  ASSERT_TRUE(show.engine.step());
  show.engine.cancel(id);
  show.engine.run();
  EXPECT_EQ(shown.end, EndReason::kCancelled);
  EXPECT_EQ(show.engine.metrics().images_encoded, 1);
  show.expect_nothing_held();
}

// faults: "An image that cannot be used is silently dropped. It is an error."
TEST(ImageRequests, AnImageThatCannotBeEncodedEndsItsOwnRequestOnly) {
  Show show;
  Answer text, shown;
  show.submit(request({5, 6, 7}, 10), text);
  Request broken = show.of(kTwoImages, {1, 3});
  broken.pictures[1].patches.resize(3);
  show.submit(std::move(broken), shown);
  show.engine.run();
  EXPECT_EQ(shown.end, EndReason::kError);
  EXPECT_NE(shown.error.find("image 1"), std::string::npos) << shown.error;
  EXPECT_TRUE(shown.tokens.empty());
  EXPECT_EQ(text.tokens.size(), 10u);
  show.expect_nothing_held();
}

TEST(ImageRequests, PicturesThatDoNotFitTheirSpansAreRefused) {
  Show show;
  const auto refusal = [&](const std::function<void(Request&)>& damage) -> std::string {
    Request r = show.of(kTwoImages, {1, 3});
    damage(r);
    try {
      show.engine.submit(std::move(r));
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal([](Request&) {}), "accepted");
  EXPECT_NE(refusal([](Request& r) { r.pictures.pop_back(); }).find("pictures"), std::string::npos);
  EXPECT_NE(refusal([](Request& r) { ++r.pictures[0].grid.token_cols; }).find("span"), std::string::npos);
  EXPECT_NE(refusal([](Request& r) { r.images.dead.pop_back(); }).find("flag"), std::string::npos);
  EXPECT_NE(refusal([](Request& r) { r.images.rows.resize(1); }).find("both"), std::string::npos);

  const auto context = make_cpu_context(1);
  Engine text_only(*context, testing::tiny_model(), nullptr, sizes(0));
  EXPECT_THROW(text_only.submit(show.of(kTwoImages, {1, 3})), Error);
}

}  // namespace
}  // namespace mdi
