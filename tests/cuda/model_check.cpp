// A row's logits do not depend on chunking, on the batch or on drafts that were rejected: the same bits on the GPU, for
// the golden text model and, where MDI_SLICE names one (`mdi synth DIR --preset slice`), for a checkpoint of the
// released widths, whose products and attention run on the tensor cores. Likewise the rows of images.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "../model/tiny_model.h"
#include "find_golden.h"
#include "harness.h"
#include "model/draft.h"
#include "model/place.h"
#include "model/vision_tower.h"
#include "random_data.h"

namespace mdi::check {

namespace {

using testing::first_difference;
using testing::Runner;
using testing::slice;
using testing::some_tokens;

// The harness' context, which it keeps.
std::shared_ptr<Context> shared(Harness& h) {
  return {&h.cuda(), [](Context*) {}};
}

struct Subject {
  Harness& h;
  std::string name;
  const Model& model;
  int64_t length;

  int64_t vocab() const { return model.config().vocab_size; }
  Runner runner(int sequences, int64_t max_rows) const {
    const auto rows = std::max<int64_t>(max_rows, int64_t{sequences} * model.config().dspark_block_size);
    return {model, shared(h), sequences, length, static_cast<int32_t>(rows)};
  }
  void report(const std::string& check, const std::string& shape, const std::vector<float>& found,
              const std::vector<float>& expected) const {
    const int64_t row = first_difference(found, expected, vocab());
    h.expect("model " + check, name + " " + shape, row < 0, row < 0 ? "" : "row " + std::to_string(row) + " differs");
  }
};

std::vector<float> rows_of(const Subject& s, const std::vector<float>& logits, int64_t begin, int64_t end) {
  return {logits.begin() + begin * s.vocab(), logits.begin() + end * s.vocab()};
}

std::vector<float> whole_prompt(const Subject& s) {
  Runner runner = s.runner(1, s.length);
  return runner.run({{0, 0, some_tokens(s.length, 1)}});
}

void check_chunks(const Subject& s, const std::vector<float>& whole, int64_t chunk) {
  Runner runner = s.runner(1, chunk);
  const auto tokens = some_tokens(s.length, 1);
  std::vector<float> all;
  for (int64_t at = 0; at < s.length; at += chunk) {
    const auto part = runner.run({{0, static_cast<int32_t>(at), slice(tokens, at, std::min(at + chunk, s.length))}});
    all.insert(all.end(), part.begin(), part.end());
  }
  s.report("chunks", "of " + std::to_string(chunk), all, whole);
}

// Two of four others stand before the sequence in the batch and two behind it, with chunks of other lengths.
void check_others(const Subject& s, const std::vector<float>& whole) {
  Runner runner = s.runner(5, 30 + 1 + 3 + 64 + 17);
  const auto mine = some_tokens(s.length, 1);
  const int64_t lengths[4] = {1, 3, 64, 17};
  int64_t starts[4] = {};
  std::vector<float> all;
  for (int64_t at = 0; at < s.length; at += 30) {
    std::vector<Runner::Part> parts;
    int64_t before = 0;
    for (int32_t other = 0; other < 4; ++other) {
      if (other == 2) parts.push_back({2, static_cast<int32_t>(at), slice(mine, at, std::min(at + 30, s.length))});
      const int64_t end = std::min(starts[other] + lengths[other], s.length);
      parts.push_back({other < 2 ? other : other + 1, static_cast<int32_t>(starts[other]),
                       slice(some_tokens(s.length, 11 + static_cast<uint32_t>(other)), starts[other], end)});
      if (other < 2) before += end - starts[other];
      starts[other] = end;
    }
    const auto logits = runner.run(parts);
    const auto own = rows_of(s, logits, before, before + static_cast<int64_t>(parts[2].tokens.size()));
    all.insert(all.end(), own.begin(), own.end());
  }
  s.report("among others", "chunks of 30", all, whole);
}

// Blocks of wrong drafts behind the prompt: what is rejected leaves nothing behind, whatever was accepted before it.
void check_rejected(const Subject& s, const std::vector<float>& whole) {
  Runner runner = s.runner(1, s.length);
  const auto tokens = some_tokens(s.length, 1), wrong = some_tokens(s.length, 99);
  int64_t at = s.length / 2;
  std::vector<float> all = runner.run({{0, 0, slice(tokens, 0, at)}});
  for (int64_t accepted = 0; at < s.length; at += accepted, accepted = (accepted + 1) % 7) {
    accepted = std::min(accepted, s.length - at);
    std::vector<int32_t> block = slice(tokens, at, at + accepted);
    block.insert(block.end(), wrong.begin(), wrong.begin() + (7 - accepted));
    if (at + 7 > s.length) block.resize(static_cast<size_t>(accepted));
    if (block.empty()) continue;
    const auto logits = runner.run({{0, static_cast<int32_t>(at), block}}, {static_cast<int32_t>(accepted)});
    const auto own = rows_of(s, logits, 0, accepted);
    all.insert(all.end(), own.begin(), own.end());
  }
  s.report("rejected drafts", "blocks of 7", all, whole);
}

struct Block {
  std::vector<float> logits, confidence;
};

// One draft call for the slots given, from their committed lengths; the chain is led along fixed tokens.
std::vector<Block> draft_blocks(Runner& r, const std::vector<DraftSequence>& sequences) {
  DraftBuffers buffers(*r.context, r.model, static_cast<int32_t>(sequences.size()));
  std::vector<Block> blocks(sequences.size());
  const auto choose = [&](size_t s, int i, std::span<const float> logits) {
    blocks[s].logits.insert(blocks[s].logits.end(), logits.begin(), logits.end());
    return static_cast<int32_t>(7 + 3 * i);
  };
  const Drafts drafts = draft(*r.context, r.model, r.state, sequences, r.buffers, buffers, choose);
  for (size_t s = 0; s < blocks.size(); ++s) blocks[s].confidence = drafts.confidence[s];
  return blocks;
}

void check_drafts(const Subject& s) {
  if (s.model.draft_stages() == 0) return;
  const auto tokens = some_tokens(s.length, 1);
  const int64_t length = s.length - 20;
  const DraftSequence mine{.slot = 0, .length = static_cast<int32_t>(length), .anchor = 5};
  Runner one = s.runner(1, s.length);
  one.run({{0, 0, slice(tokens, 0, length)}});
  const Block alone = draft_blocks(one, {mine})[0];
  Runner small = s.runner(1, 7);
  for (int64_t at = 0; at < length; at += 7) {
    small.run({{0, static_cast<int32_t>(at), slice(tokens, at, std::min(at + 7, length))}});
  }
  const Block chunked = draft_blocks(small, {mine})[0];
  Runner many = s.runner(3, s.length + 60);
  many.run({{1, 0, some_tokens(33, 21)}, {0, 0, slice(tokens, 0, length)}, {2, 0, some_tokens(2, 22)}});
  const Block among =
      draft_blocks(many, {{.slot = 2, .length = 2, .anchor = 9}, mine, {.slot = 1, .length = 33, .anchor = 1}})[1];
  for (const auto& [other, shape] : {std::pair{&chunked, "after chunks of 7"}, {&among, "among others"}}) {
    s.report("drafts", shape, other->logits, alone.logits);
    s.h.report("model draft confidence", s.name + " " + shape, compare_bits(other->confidence, alone.confidence));
  }
}

void check_model(const Subject& s) {
  const std::vector<float> whole = whole_prompt(s);
  s.h.expect("model logits", s.name, std::all_of(whole.begin(), whole.end(), [](float v) { return std::isfinite(v); }));
  for (const int64_t chunk : {1, 7, 64}) {
    if (!s.h.small() || chunk == 7) check_chunks(s, whole, chunk);
  }
  s.report("again", "whole", whole_prompt(s), whole);
  check_others(s, whole);
  check_rejected(s, whole);
  check_drafts(s);
}

void check_placed(Harness& h, const std::string& name, Model model, int64_t length) {
  const DeviceBuffer placed = place_weights(h.cuda(), model);
  check_model({h, name, model, length});
}

// An image's rows are near the oracle's, and the same bits whatever image the buffers held before.
void check_images(Harness& h) {
  const auto dir = testing::golden_dir() / "tiny-vision";
  const Model mapped = testing::load_checkpoint(dir);
  Model model = testing::load_checkpoint(dir);
  const DeviceBuffer placed = place_weights(h.cuda(), model);
  VisionBuffers buffers(h.cuda(), model), host_buffers(h.cpu(), mapped);
  Random random(4);
  std::vector<PreparedImage> images;
  std::vector<std::vector<bf16>> first;
  for (const auto& [width, height] : {std::pair{150, 90}, {60, 140}, {300, 20}, {70, 70}}) {
    RgbImage image{.width = width, .height = height, .pixels = std::vector<uint8_t>(size_t{3} * width * height)};
    for (uint8_t& pixel : image.pixels) pixel = static_cast<uint8_t>(random.below(256));
    images.push_back(prepare_image(image, image_rules(model.config().vision)));
    if (h.small()) break;
  }
  for (const PreparedImage& image : images) {
    const std::string shape =
        std::to_string(image.grid.patch_rows) + " x " + std::to_string(image.grid.patch_cols) + " patches";
    first.push_back(image_rows(h.cuda(), model, image, buffers));
    const std::vector<bf16> expected = image_rows(h.cpu(), mapped, image, host_buffers);
    h.report("model image", shape, compare(first.back(), expected, model.config().dim, {.ulps = 4, .row = 3e-2}));
  }
  for (size_t i = images.size(); i-- > 0;) {
    const std::vector<bf16> again = image_rows(h.cuda(), model, images[i], buffers);
    h.report("model image again", std::to_string(i), compare_bits(again, first[i]));
  }
}

int run(int argc, char** argv) {
  Harness h("model", argc, argv, int64_t{2} << 30);
  find_golden();
  check_placed(h, "tiny-text", testing::load_tiny_model(), h.small() ? 45 : 300);
  check_images(h);
  const char* wide = std::getenv("MDI_SLICE");
  if (wide != nullptr && !h.small()) check_placed(h, "slice", testing::load_checkpoint(wide), 300);
  return h.finish();
}

}  // namespace

}  // namespace mdi::check

int main(int argc, char** argv) { return mdi::check::guarded(mdi::check::run, argc, argv); }
