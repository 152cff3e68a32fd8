// Bounded replay: what it must leave as it is, and what it may change, bit for bit.
#include "model/replay.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/error.h"
#include "replay_state.h"

namespace mdi {
namespace {

using namespace mdi::testing;

constexpr int32_t kLength = 203;
constexpr ReplayForm kForms[] = {ReplayForm::kAfterLastSource, ReplayForm::kFromLastSource};

int64_t vocab() { return tiny_model().config().vocab_size; }
const std::vector<int32_t>& prompt() {
  static const auto tokens = some_tokens(400, 21);
  return tokens;
}
Runner runner(int sequences = 1) { return Runner(tiny_model(), sequences, 400, 400); }
std::vector<float> last_rows(const std::vector<float>& logits, int64_t rows) {
  return {logits.end() - rows * vocab(), logits.end()};
}

TEST(Replay, TheLastSourceIsThatOfTheConfig) { EXPECT_EQ(last_source_layer(tiny_model().config()), 5); }

// The kept rows as a plain step that begins where they begin: the layers up to the last source have run everything
// before, the upper layers' windows begin empty. Nothing is dropped in that step, so no row is moved.
std::vector<float> kept_rows_alone(Runner& r, int32_t kept_from, int32_t end) {
  run_replayed(r, {{0, 0, slice(prompt(), 0, kept_from), 0, false}});
  poison_rings_above_source(r);
  return run_replayed(r, {{0, kept_from, slice(prompt(), kept_from, end), kept_from}})[0];
}

TEST(Replay, KeptRowsEqualThoseOfAStepThatBeginsThere) {
  for (const int32_t rows : {1, 5, 16, 20, 64}) {
    Runner slow = runner();
    const auto expected = kept_rows_alone(slow, kLength - rows, kLength);
    for (const float v : expected) ASSERT_TRUE(std::isfinite(v));
    for (const ReplayForm form : kForms) {
      Runner replayed = runner();
      poison_rings(replayed);
      const auto found = run_segment(replayed, 0, prompt(), 0, kLength, rows, kLength, 0, form);
      ASSERT_EQ(first_difference(found, expected, vocab()), -1) << rows;
      ASSERT_EQ(lower_state(replayed, 0, kLength), lower_state(slow, 0, kLength)) << rows;
      ASSERT_EQ(upper_state(replayed, 0, kLength, kLength - rows), upper_state(slow, 0, kLength, kLength - rows));
    }
  }
}

TEST(Replay, LayersUpToTheLastSourceAreThoseOfAnExactRun) {
  Runner exact = runner();
  const auto all = exact.run({{0, 0, slice(prompt(), 0, kLength)}});
  for (const ReplayForm form : kForms) {
    Runner replayed = runner();
    const auto kept = run_segment(replayed, 0, prompt(), 0, kLength, 16, kLength, 0, form);
    EXPECT_EQ(lower_state(replayed, 0, kLength), lower_state(exact, 0, kLength));
    // The approximation is one: the first kept row sees a shorter window.
    EXPECT_NE(first_difference(kept, last_rows(all, 16), vocab()), -1);
  }
}

TEST(Replay, ASequenceNotLongerThanRIsExact) {
  Runner exact = runner();
  const auto all = exact.run({{0, 0, slice(prompt(), 0, 100)}});
  for (const int32_t rows : {100, 128}) {
    Runner replayed = runner();
    const auto found = run_segment(replayed, 0, prompt(), 0, 100, rows, 100);
    EXPECT_EQ(first_difference(found, all, vocab()), -1);
    EXPECT_EQ(lower_state(replayed, 0, 100), lower_state(exact, 0, 100));
    EXPECT_EQ(upper_state(replayed, 0, 100, 0), upper_state(exact, 0, 100, 0));
  }
}

class ReplayChunks : public ::testing::TestWithParam<int32_t> {};

TEST_P(ReplayChunks, GiveTheSameBitsAsOneChunk) {
  Runner whole = runner();
  const auto expected = run_segment(whole, 0, prompt(), 0, kLength, 20, kLength);
  for (const ReplayForm form : kForms) {
    Runner chunked = runner();
    poison_rings(chunked);
    const auto found = run_segment(chunked, 0, prompt(), 0, kLength, 20, GetParam(), 0, form);
    ASSERT_EQ(first_difference(found, expected, vocab()), -1);
    ASSERT_EQ(lower_state(chunked, 0, kLength), lower_state(whole, 0, kLength));
    ASSERT_EQ(upper_state(chunked, 0, kLength, kLength - 20), upper_state(whole, 0, kLength, kLength - 20));
  }
}
INSTANTIATE_TEST_SUITE_P(Lengths, ReplayChunks, ::testing::Values(1, 7, 15, 20, 21, 64, 199));

// A second prompt behind an answer, longer and shorter than R; then decoding, one token and several at once.
TEST(Replay, DecodingAfterwardsReadsNothingThatWasNotComputed) {
  const auto& tokens = prompt();
  for (const int32_t second : {12, 90}) {  // tokens of the second prompt
    std::vector<std::vector<float>> seen;
    for (const bool poisoned : {false, true}) {
      Runner r = runner();
      if (poisoned) poison_rings(r);
      std::vector<ReplaySegment> segments = {replay_segment(16, 0, kLength)};
      std::vector<float> logits = run_segment(r, 0, tokens, 0, kLength, 16, 50);
      const auto add = [&logits](const std::vector<float>& more) {
        logits.insert(logits.end(), more.begin(), more.end());
      };
      int32_t at = kLength;
      for (; at < kLength + 5; ++at) add(run_replayed(r, {{0, at, {tokens[at]}, replay_from(segments)}})[0]);
      segments.push_back(replay_segment(16, at, at + second));
      add(run_segment(r, 0, tokens, at, at + second, 16, 50, replay_from(segments)));
      at += second;
      // A block of six of which two are accepted.
      add(run_replayed(r, {{0, at, slice(tokens, at, at + 6), replay_from(segments), true, 2}})[0]);
      add(run_replayed(r, {{0, at + 2, slice(tokens, at + 2, at + 20), replay_from(segments)}})[0]);
      for (const float v : logits) ASSERT_TRUE(std::isfinite(v));
      seen.push_back(logits);
    }
    EXPECT_EQ(first_difference(seen[0], seen[1], vocab()), -1);
  }
}

// A replayed prompt's last chunk, a middle chunk, a decoding sequence that was replayed and an exact one in one step.
TEST(Replay, MixedStepsEqualEachSequenceAlone) {
  const auto a = some_tokens(kLength, 31), b = some_tokens(kLength, 32), c = some_tokens(kLength, 33),
             d = some_tokens(kLength, 34);
  const auto prepare = [&](Runner& r) {
    run_replayed(r, {{0, 0, slice(a, 0, 100), 120, false}});  // slot 0: replayed, 36 tokens to go, kept from 120
    run_replayed(r, {{1, 0, slice(b, 0, 50), 150, false}});
    run_replayed(r, {{2, 0, slice(c, 0, 90), 70, false}});
    run_replayed(r, {{3, 0, slice(d, 0, 61), 0, false}});
  };
  const std::vector<ReplayPart> parts = {{1, 50, slice(b, 50, 80), 150},
                                         {0, 100, slice(a, 100, 136), 120},
                                         {2, 90, slice(c, 90, 91), 70},
                                         {3, 61, slice(d, 61, 66), 0}};
  for (const ReplayForm form : kForms) {
    Runner together = runner(4), alone = runner(4);
    prepare(together);
    prepare(alone);
    poison_rings_above_source(together, 0);
    poison_rings_above_source(together, 1);
    const auto mixed = run_replayed(together, parts, form);
    EXPECT_TRUE(mixed[0].empty());
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto one = run_replayed(alone, {parts[i]}, form);
      const int32_t slot = parts[i].slot;
      const int32_t length = parts[i].start + static_cast<int32_t>(parts[i].tokens.size());
      ASSERT_EQ(first_difference(mixed[i], one[0], vocab()), -1) << "slot " << slot;
      ASSERT_EQ(lower_state(together, slot, length), lower_state(alone, slot, length)) << "slot " << slot;
      ASSERT_EQ(upper_state(together, slot, length, parts[i].replay_from),
                upper_state(alone, slot, length, parts[i].replay_from))
          << "slot " << slot;
    }
  }
}

// main_hidden and the draft stages' rings are those of the kept rows, and a draft reads no older ones.
TEST(Replay, DraftsAfterAReplayedPrompt) {
  const auto proposals = [](Runner& r, int32_t from) {
    DraftBuffers buffers(*r.context, r.model, 1);
    std::vector<float> logits;
    const DraftSequence sequence{.slot = 0, .length = kLength, .anchor = 7, .replay_from = from};
    const Drafts drafts =
        draft(*r.context, r.model, r.state, {&sequence, 1}, r.buffers, buffers, [&](size_t, int i, auto row) {
          logits.insert(logits.end(), row.begin(), row.end());
          return 11 + i;
        });
    logits.insert(logits.end(), drafts.confidence[0].begin(), drafts.confidence[0].end());
    return logits;
  };
  for (const int32_t rows : {5, 16, 40}) {  // the first is shorter than the window
    Runner slow = runner();
    kept_rows_alone(slow, kLength - rows, kLength);
    const auto expected = proposals(slow, kLength - rows);
    for (const float v : expected) ASSERT_TRUE(std::isfinite(v));
    for (const ReplayForm form : kForms) {
      Runner replayed = runner();
      poison_rings(replayed);
      run_segment(replayed, 0, prompt(), 0, kLength, rows, 64, 0, form);
      ASSERT_EQ(first_difference(proposals(replayed, kLength - rows), expected, 1), -1) << rows;
    }
  }
}

// A conversation's segments, recorded, give the same state when it is computed again in other chunks.
TEST(Replay, RecordedSegmentsGiveTheStateAgain) {
  const auto& tokens = prompt();
  Runner first = runner();
  std::vector<ReplaySegment> segments;
  int32_t at = 0;
  const auto prefill = [&](int32_t count) {
    const ReplaySegment segment = replay_segment(16, at, at + count);
    run_segment(first, 0, tokens, at, at + count, 16, 33, replay_from(segments));
    if (segment.drops()) segments.push_back(segment);
    at += count;
  };
  const auto decode = [&](int32_t count) {
    for (int32_t i = 0; i < count; ++i, ++at) run_replayed(first, {{0, at, {tokens[at]}, replay_from(segments)}});
  };
  prefill(10);  // shorter than R
  decode(3);
  prefill(70);
  decode(9);
  prefill(8);
  prefill(41);
  decode(6);

  const auto pieces = replay_pieces(segments, at);
  const std::vector<ReplayPiece> expected = {{0, 13, 0}, {13, 100, 67}, {100, 147, 125}};
  ASSERT_EQ(pieces, expected);
  for (const int32_t chunk : {200, 11, 1}) {
    Runner again = runner();
    poison_rings(again);
    for (const ReplayPiece& piece : pieces) {
      for (int32_t p = piece.start; p < piece.end; p += chunk) {
        run_replayed(again, {{0, p, slice(tokens, p, std::min(p + chunk, piece.end)), piece.replay_from}});
      }
    }
    ASSERT_EQ(lower_state(again, 0, at), lower_state(first, 0, at)) << chunk;
    ASSERT_EQ(upper_state(again, 0, at, replay_from(segments)), upper_state(first, 0, at, replay_from(segments)));
    const auto next = slice(tokens, at, at + 20);
    ASSERT_EQ(first_difference(run_replayed(again, {{0, at, next, replay_from(segments), true, 0}})[0],
                               run_replayed(first, {{0, at, next, replay_from(segments), true, 0}})[0], vocab()),
              -1);
  }
}

// That rows are dropped at all: how many each stage of each layer is given.
TEST(Replay, RowsThatEachLayerComputes) {
  const int last = last_source_layer(tiny_model().config());
  for (const ReplayForm form : kForms) {
    Runner r = runner();
    std::map<std::pair<std::string, int>, int64_t> rows;
    r.context->tap = [&rows](std::string_view name, int layer, const TensorView& v) {
      rows[{std::string(name), layer}] = v.shape[0];
    };
    run_replayed(r, {{0, 0, slice(prompt(), 0, 100), 80}}, form);
    const bool bounded = form == ReplayForm::kFromLastSource;
    for (int layer = 0; layer < tiny_model().config().n_layers; ++layer) {
      EXPECT_EQ((rows[{"attn_in", layer}]), layer <= last ? 100 : 20);
      for (const char* name : {"attn_out", "ffn_in", "gate_indices", "ffn_out", "out"}) {
        EXPECT_EQ((rows[{name, layer}]), layer < last || (layer == last && !bounded) ? 100 : 20) << name << layer;
      }
    }
    EXPECT_EQ((rows[{"main_hidden", -1}]), 20);
  }
}

TEST(Replay, RefusesWhatItCannotGive) {
  Runner r = runner();
  StepSequence sequence;
  const auto tokens = slice(prompt(), 0, 20);
  const std::vector<int32_t> sampled = {9};
  sequence.tokens = tokens;
  sequence.blocks = r.blocks[0];
  sequence.sample_tokens = sampled;
  sequence.replay_from = 9;
  EXPECT_NO_THROW(make_step(r.model, r.state, {&sequence, 1}));
  sequence.replay_from = 10;  // the sample is a dropped row
  EXPECT_THROW(make_step(r.model, r.state, {&sequence, 1}), Error);
  sequence.replay_from = -1;
  EXPECT_THROW(make_step(r.model, r.state, {&sequence, 1}), Error);
  // A part of a replayed prompt.
  EXPECT_THROW(run_replayed(r, {{0, 0, tokens, 10, true, 19}}), Error);
  EXPECT_NO_THROW(run_replayed(r, {{0, 0, tokens, 10, true, 0}}));
}

}  // namespace
}  // namespace mdi
