// Prompts with images, from files to logits.
#include "engine/image_prompt.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "../model/tiny_model.h"
#include "core/error.h"
#include "engine/generator.h"
#include "engine/golden/file.h"

namespace mdi {
namespace {

const testing::fs::path kDir = testing::golden_dir() / "tiny-vision";

const Model& vision_model() {
  static const Model model = [] {
    Checkpoint checkpoint = Checkpoint::open(kDir);
    auto map = load_engram_token_map(kDir / "engram_token_map.json", checkpoint.config());
    return load_model(std::move(checkpoint), std::move(map));
  }();
  return model;
}

std::vector<PreparedImage> golden_images(std::initializer_list<int> numbers) {
  std::vector<std::string> files;
  for (int i : numbers) files.push_back(kDir / ("image" + std::to_string(i) + ".png"));
  return load_images(vision_model().config(), files);
}

constexpr int32_t kPlaceholder = 251;

struct Prompt {
  ImagePrompt prompt;
  ImageSpans spans;
};

Prompt make_prompt(const std::vector<int32_t>& ids, std::initializer_list<int> numbers) {
  const auto context = make_cpu_context(2);
  const auto images = golden_images(numbers);
  Prompt p{.prompt = expand_placeholders(vision_model().config(), ids, images), .spans = {}};
  p.spans = encode_images(*context, vision_model(), p.prompt, images);
  return p;
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

// The stored prompts, with each span taken back to one placeholder, expand to themselves.
TEST(ImagePrompt, StoredPromptsExpandToThemselves) {
  for (const char* name : {"image_prompt0", "image_prompt1"}) {
    golden::GoldenFile file(kDir / "expected" / (std::string(name) + ".safetensors"), name);
    const TensorView tokens = file.get("input.tokens"), types = file.get("input.token_types");
    const TensorView starts = file.get("input.image_starts"), embedded = file.get("prefill.embed_out");
    std::vector<int32_t> ids;
    std::vector<PreparedImage> images;
    for (int64_t i = 0; i < tokens.shape[0]; ++i) {
      const int32_t type = types.as<int32_t>()[i];
      if (type <= 0) ids.push_back(tokens.as<int32_t>()[i]);
      if (type != 0) continue;
      // The image is the one whose rows stand here.
      for (int n = 0; n < 5; ++n) {
        PreparedImage image = golden_images({n}).front();
        if (i + image.grid.tokens() > tokens.shape[0]) continue;
        const auto context = make_cpu_context(2);
        VisionBuffers buffers(*context, vision_model());
        const auto rows = image_rows(*context, vision_model(), image, buffers);
        double difference = 0, size = 0;
        for (size_t k = 0; k < rows.size(); ++k) {
          const float e = to_float(embedded.as<bf16>()[i * embedded.shape[1] + static_cast<int64_t>(k)]);
          difference += std::pow(to_float(rows[k]) - e, 2);
          size += e * e;
        }
        if (std::sqrt(difference / size) < 0.02) images.push_back(std::move(image));
      }
    }
    ASSERT_EQ(static_cast<int64_t>(images.size()), starts.shape[0]) << name;
    const ImagePrompt p = expand_placeholders(vision_model().config(), ids, images);
    EXPECT_EQ(p.tokens, std::vector<int32_t>(tokens.as<int32_t>(), tokens.as<int32_t>() + tokens.shape[0]));
    EXPECT_EQ(p.starts, std::vector<int32_t>(starts.as<int32_t>(), starts.as<int32_t>() + starts.shape[0]));
    for (size_t i = 0; i < p.types.size(); ++i) {
      EXPECT_EQ(static_cast<int32_t>(p.types[i]), types.as<int32_t>()[i]) << name << " at " << i;
    }

    // And from the files to the answer: the logit of the stored next token is the largest.
    const auto context = make_cpu_context(2);
    Generator generator(*context, vision_model(), 200, 512);
    GenerateRequest request{.prompt = p.tokens, .max_tokens = 1, .sampling = {.temperature = 0.0f}, .stop_ids = {}};
    request.images = encode_images(*context, vision_model(), p, images);
    EXPECT_EQ(generator.run(request).tokens.front(), file.get("prefill.next_token").as<int64_t>()[0]) << name;
  }
}

// A span may be split anywhere: the logits of every row are those of one step, bit for bit.
TEST(ImagePrompt, AnyChunksGiveTheSameLogits) {
  const Prompt p = make_prompt({5, 9, kPlaceholder, 7, 8, kPlaceholder, 10, 11, 12}, {1, 3});
  const auto total = static_cast<int64_t>(p.prompt.tokens.size());
  const auto run = [&](const std::vector<int64_t>& chunks) {
    testing::Runner runner(vision_model(), 1, total, static_cast<int32_t>(total));
    std::vector<float> logits;
    size_t turn = 0;
    for (int64_t at = 0; at < total; ++turn) {
      const int64_t count = std::min(chunks[turn % chunks.size()], total - at);
      const PromptPart part = part_of(p.prompt.tokens, p.spans, at, count);
      const auto samples = testing::iota_blocks(0, count);
      const StepSequence sequence{.slot = 0,
                                  .start = static_cast<int32_t>(at),
                                  .tokens = part.tokens,
                                  .dead = part.dead,
                                  .image_rows = part.image_rows,
                                  .blocks = runner.blocks[0],
                                  .sample_tokens = samples};
      const Step step = make_step(vision_model(), runner.state, {&sequence, 1});
      forward(*runner.context, vision_model(), runner.state, step, runner.buffers);
      const auto accepted = static_cast<int32_t>(count);
      commit(*runner.context, vision_model(), runner.state, step, runner.buffers, {&accepted, 1});
      const auto* rows = runner.buffers.logits.as<float>();
      logits.insert(logits.end(), rows, rows + count * vision_model().config().vocab_size);
      at += count;
    }
    return logits;
  };
  const auto whole = run({total});
  for (const std::vector<int64_t>& chunks : std::vector<std::vector<int64_t>>{{1}, {2}, {3, 1, 5}, {7}, {total - 1}}) {
    EXPECT_EQ(testing::first_difference(run(chunks), whole, vision_model().config().vocab_size), -1) << chunks[0];
  }
}

// The images matter: another image, or none of its rows' effects, is another answer.
TEST(ImagePrompt, EqualIdsAreNotEqualImages) {
  const auto context = make_cpu_context(2);
  // 1 and 4 have the same grid, so the same ids.
  const Prompt first = make_prompt({5, kPlaceholder, 7}, {1}), second = make_prompt({5, kPlaceholder, 7}, {4});
  ASSERT_EQ(first.prompt.tokens, second.prompt.tokens);
  const auto request = [](const Prompt& p, std::vector<int32_t> more) {
    GenerateRequest r{.prompt = p.prompt.tokens, .max_tokens = 6, .sampling = {.temperature = 0.0f}, .stop_ids = {}};
    r.images = p.spans;
    r.prompt.insert(r.prompt.end(), more.begin(), more.end());
    r.images.dead.insert(r.images.dead.end(), more.size(), 0);
    return r;
  };
  Generator warm(*context, vision_model(), 200, 512);
  EXPECT_EQ(warm.run(request(first, {})).reused_tokens, 0);
  for (const Prompt* p : {&second, &first}) {
    const auto longer = request(*p, {20, 21});
    Generator cold(*context, vision_model(), 200, 512);
    const auto expected = cold.run(longer);
    EXPECT_EQ(warm.run(longer).tokens, expected.tokens);
  }
  // What goes on where the state ends, with the image that it holds, runs only what is new.
  const auto answer = warm.run(request(second, {}));
  auto next = request(second, answer.tokens);
  next.prompt.push_back(30);
  next.images.dead.push_back(0);
  const auto continued = warm.run(next);
  EXPECT_GT(continued.reused_tokens, static_cast<int64_t>(second.prompt.tokens.size()));
  Generator cold(*context, vision_model(), 200, 512);
  EXPECT_EQ(continued.tokens, cold.run(next).tokens);
}

TEST(ImagePrompt, PlaceholdersInFrontOfAText) {
  const ModelConfig& c = vision_model().config();
  EXPECT_EQ(put_placeholders(c, {5, 6}, 2), (std::vector<int32_t>{kPlaceholder, kPlaceholder, 5, 6}));
  EXPECT_EQ(put_placeholders(c, {c.bos_token_id, 6}, 1), (std::vector<int32_t>{c.bos_token_id, kPlaceholder, 6}));
  EXPECT_EQ(put_placeholders(c, {5, kPlaceholder}, 1), (std::vector<int32_t>{5, kPlaceholder}));
  EXPECT_EQ(put_placeholders(c, {5}, 0), (std::vector<int32_t>{5}));
}

TEST(ImagePrompt, WhatIsRefused) {
  const ModelConfig& c = vision_model().config();
  const auto expand = [&](const std::vector<int32_t>& ids, std::initializer_list<int> numbers) {
    return refusal([&] { expand_placeholders(c, ids, golden_images(numbers)); });
  };
  EXPECT_EQ(expand({5, 6}, {0}),
            "prompt: expected one placeholder (token 251) for each image, found 0 placeholders and 1 image");
  EXPECT_EQ(expand({5, kPlaceholder}, {}),
            "prompt: expected one placeholder (token 251) for each image, found 1 placeholder and 0 images");
  EXPECT_NE(expand({5, kPlaceholder}, {0, 1}), "accepted");
  EXPECT_EQ(expand(std::vector<int32_t>(30, kPlaceholder),
                   {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}),
            "prompt: it has 510 tokens with its images, the model's limit is 256");

  const ModelConfig& text_only = testing::tiny_model().config();
  const std::vector<std::string> file{kDir / "image0.png"}, text{kDir / "config.json"}, missing{kDir / "none.png"};
  EXPECT_EQ(refusal([&] { load_images(text_only, file); }),
            "image: the model takes text only: its config.json has no vision_config");
  EXPECT_EQ(refusal([&] {
              expand_placeholders(text_only, std::vector<int32_t>{5, kPlaceholder}, golden_images({0}));
            }),
            "image: the model takes text only: its config.json has no vision_config");
  // A text-only model has no placeholder: the id is a token like others.
  EXPECT_EQ(expand_placeholders(text_only, std::vector<int32_t>{5, kPlaceholder}, {}).tokens.size(), 2u);
  EXPECT_NE(refusal([&] { load_images(c, text); }).find("expected a JPEG, PNG or WebP image"), std::string::npos);
  EXPECT_NE(refusal([&] { load_images(c, missing); }).find("none.png"), std::string::npos);
}

TEST(ImagePrompt, StepsRefuseRowsThatDoNotMatch) {
  testing::Runner runner(vision_model(), 1, 64, 16);
  const std::vector<int32_t> tokens{5, kPlaceholder, kPlaceholder, 6};
  const std::vector<uint8_t> dead{0, 1, 1, 0};
  const std::vector<bf16> rows(static_cast<size_t>(2 * vision_model().config().dim));
  const auto make = [&](const Model& model, std::span<const uint8_t> flags, std::span<const bf16> values) {
    return refusal([&] {
      const StepSequence sequence{.slot = 0,
                                  .start = 0,
                                  .tokens = tokens,
                                  .dead = flags,
                                  .image_rows = values,
                                  .blocks = runner.blocks[0],
                                  .sample_tokens = {}};
      make_step(model, runner.state, {&sequence, 1});
    });
  };
  EXPECT_EQ(make(vision_model(), dead, rows), "accepted");
  EXPECT_NE(make(vision_model(), dead, {}), "accepted");
  EXPECT_NE(make(vision_model(), {}, rows), "accepted");
  EXPECT_NE(make(vision_model(), dead, std::span(rows).first(rows.size() - 1)), "accepted");
  EXPECT_NE(make(testing::tiny_model(), dead, rows), "accepted");

  const auto context = make_cpu_context(1);
  Generator generator(*context, vision_model(), 64, 16);
  GenerateRequest request{.prompt = tokens, .max_tokens = 1, .sampling = {.temperature = 0.0f}, .stop_ids = {}};
  request.images.dead = {0, 1, 1};
  EXPECT_NE(refusal([&] { generator.run(request); }), "accepted");
  request.images.dead = dead;
  EXPECT_NE(refusal([&] { generator.run(request); }), "accepted");
}

}  // namespace
}  // namespace mdi
