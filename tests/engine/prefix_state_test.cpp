// What the cache hands out, restored and run: a prefix hit, a fork and a copied block leave the very bits that a cold
// run of the same tokens leaves, in state, logits and proposals.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "cached_runner.h"
#include "checkpoint/memory_plan.h"

namespace mdi {
namespace {

using testing::CachedRunner;
using testing::CachedSequence;
using testing::first_difference;
using testing::slice;
using testing::some_tokens;
using testing::tiny_model;

constexpr CacheSizes kSizes{.blocks = 32, .slots = 4, .snapshots = 6};

std::vector<int32_t> join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

int32_t vocab() { return tiny_model().config().vocab_size; }

// The logits of the last `rows` rows.
std::vector<float> last_rows(const std::vector<float>& logits, int64_t rows, int32_t width = vocab()) {
  return {logits.end() - rows * width, logits.end()};
}

void expect_same_sequence(CachedRunner& a, const CachedSequence& x, CachedRunner& b, const CachedSequence& y,
                          const std::string& what, int32_t replay_from = 0) {
  EXPECT_TRUE(a.state(x, replay_from) == b.state(y, replay_from)) << what << ": state";
  const auto drafts = a.propose(x, 11);
  const auto expected = b.propose(y, 11);
  EXPECT_EQ(drafts.first, expected.first) << what << ": proposals";
  EXPECT_EQ(first_difference(drafts.second, expected.second, 1), -1) << what << ": confidence";
}

// faults: "A prefix hit restores the compressed rows but not the window state."
// Positions with full and half-full pairs, shorter than the window, past its wrap, at block ends and in partial blocks.
TEST(PrefixState, AHitEqualsAColdRunBitForBit) {
  const auto tokens = some_tokens(420, 3);
  for (const int32_t position : {1, 2, 3, 15, 16, 17, 60, 127, 128, 129, 130, 255, 256, 257, 300}) {
    const std::string what = "position " + std::to_string(position);
    CachedRunner warm(tiny_model(), kSizes);
    {
      CachedSequence first = warm.admit(tokens);
      warm.run(first, slice(tokens, 0, position), 50);
      ASSERT_TRUE(warm.publish(first));
      // It goes on with other tokens: its slot, and rows of the very block that the snapshot ends in.
      warm.run(first, some_tokens(40, 77));
    }
    const auto prompt = slice(tokens, 0, position + 100);
    CachedSequence hit = warm.admit(prompt);
    ASSERT_EQ(hit.length(), position) << what;
    CachedRunner cold(tiny_model(), kSizes);
    CachedSequence reference = cold.admit(prompt);
    ASSERT_EQ(reference.length(), 0);
    cold.run(reference, slice(prompt, 0, position));
    expect_same_sequence(warm, hit, cold, reference, what);
    ASSERT_EQ(first_difference(warm.run(hit, slice(prompt, position, position + 100), 37),
                               cold.run(reference, slice(prompt, position, position + 100)), vocab()),
              -1)
        << what;
    expect_same_sequence(warm, hit, cold, reference, what + ", 100 tokens later");
  }
}

// A conversation: every turn finds the end of the one before, and a branch of an older turn is still found.
TEST(PrefixState, TurnsAndBranchesOfAConversation) {
  CachedRunner warm(tiny_model(), kSizes);
  std::vector<int32_t> history;
  std::vector<std::vector<int32_t>> turns;
  for (uint32_t turn = 0; turn < 4; ++turn) {
    const auto prompt = join(history, some_tokens(61 + 30 * turn, turn));
    CachedSequence s = warm.admit(prompt);
    EXPECT_EQ(s.length(), static_cast<int32_t>(history.size())) << "turn " << turn;
    warm.run(s, slice(prompt, s.length(), static_cast<int64_t>(prompt.size())));
    const auto answer = some_tokens(20, 100 + turn);
    warm.run(s, answer, 1);
    warm.publish(s);
    history = join(prompt, answer);
    turns.push_back(history);
  }
  for (size_t turn = 0; turn < turns.size(); ++turn) {
    const auto question = some_tokens(33, 500 + static_cast<uint32_t>(turn));
    CachedSequence branch = warm.admit(join(turns[turn], question));
    ASSERT_EQ(branch.length(), static_cast<int32_t>(turns[turn].size()));
    CachedRunner cold(tiny_model(), kSizes);
    CachedSequence reference = cold.admit(turns[turn]);
    cold.run(reference, turns[turn]);
    EXPECT_EQ(first_difference(warm.run(branch, question), cold.run(reference, question), vocab()), -1);
    expect_same_sequence(warm, branch, cold, reference, "branch of turn " + std::to_string(turn));
  }
}

// n samples of one prompt go different ways in the same steps. Whoever writes the shared block first copies it.
TEST(PrefixState, ForkedSamplesEqualEachAlone) {
  for (const int64_t length : {128, 200, 201}) {
    CachedRunner runner(tiny_model(), kSizes);
    const auto prompt = some_tokens(length, 9);
    std::vector<CachedSequence> samples;
    samples.push_back(runner.admit(prompt));
    runner.run(samples[0], prompt);
    for (int i = 0; i < 3; ++i) samples.push_back(runner.fork(samples[0]));
    EXPECT_EQ(runner.cache.blocks.held(), blocks_for(length));

    std::vector<std::vector<int32_t>> answers;
    for (uint32_t i = 0; i < 4; ++i) answers.push_back(some_tokens(70, 40 + i));
    std::vector<std::vector<float>> logits(4);
    for (int64_t t = 0; t < 70; t += 5) {
      std::vector<CachedRunner::Part> parts;
      for (size_t i = 0; i < 4; ++i) parts.push_back({.sequence = &samples[i], .tokens = slice(answers[i], t, t + 5)});
      const auto rows = runner.step(parts);
      for (size_t i = 0; i < 4; ++i) logits[i].insert(logits[i].end(), rows[i].begin(), rows[i].end());
    }
    EXPECT_EQ(runner.copied, length % 128 == 0 ? 0 : 3);
    for (size_t i = 0; i < 4; ++i) {
      CachedRunner cold(tiny_model(), kSizes);
      CachedSequence alone = cold.admit(prompt);
      cold.run(alone, prompt);
      EXPECT_EQ(first_difference(logits[i], cold.run(alone, answers[i]), vocab()), -1) << length << " sample " << i;
      expect_same_sequence(runner, samples[i], cold, alone, "sample " + std::to_string(i));
    }
  }
}

// faults: "rollback after rejection restores less than was overwritten". The rejected rows lie in the same block as the
// snapshot that is taken next, and behind the position of the one that was restored.
TEST(PrefixState, RejectedDraftsLeaveNothingInASnapshot) {
  const auto tokens = some_tokens(300, 5);
  for (int32_t accepted = 0; accepted <= 6; ++accepted) {
    CachedRunner warm(tiny_model(), kSizes);
    CachedSequence first = warm.admit(tokens);
    warm.run(first, slice(tokens, 0, 139));
    ASSERT_TRUE(warm.publish(first));
    CachedSequence drafting = warm.admit(slice(tokens, 0, 200));
    ASSERT_EQ(drafting.length(), 139);
    const auto block = join(slice(tokens, 139, 139 + accepted), some_tokens(6 - accepted, 99));
    warm.step({{.sequence = &drafting, .tokens = block, .accepted = accepted}});
    if (accepted > 0) {
      ASSERT_TRUE(warm.publish(drafting));
    }
    warm.run(drafting, some_tokens(30, 98));

    CachedSequence hit = warm.admit(slice(tokens, 0, 300));
    ASSERT_EQ(hit.length(), 139 + accepted);
    CachedRunner cold(tiny_model(), kSizes);
    CachedSequence reference = cold.admit(tokens);
    cold.run(reference, slice(tokens, 0, 139 + accepted), 1);
    expect_same_sequence(warm, hit, cold, reference, std::to_string(accepted) + " accepted");
    EXPECT_EQ(first_difference(warm.run(hit, slice(tokens, 139 + accepted, 300)),
                               cold.run(reference, slice(tokens, 139 + accepted, 300)), vocab()),
              -1)
        << accepted;
  }
}

// Pools so small that blocks and buffers go from hand to hand all the time: whatever is found is still right. Prompts
// begin in four ways, three of which can have a snapshot; the request before is still there.
TEST(PrefixState, HitsStayRightWhileEverythingIsEvictedAndUsedAgain) {
  CachedRunner warm(tiny_model(), {.blocks = 10, .slots = 2, .snapshots = 3});
  std::optional<CachedSequence> before;
  int hits = 0;
  for (uint32_t round = 0; round < 24; ++round) {
    const auto kind = static_cast<uint32_t>(some_tokens(round + 1, 1).back()) % 4;
    const auto shared = static_cast<int32_t>(130 + 50 * kind);
    const auto prompt = join(some_tokens(shared, kind), some_tokens(20, 100 + round));
    CachedSequence s = warm.admit(prompt);
    const int32_t from = s.length();
    std::vector<float> logits;
    if (from == 0) {
      logits = warm.run(s, slice(prompt, 0, shared));
      warm.publish(s);
    } else {
      ASSERT_EQ(from, shared);
      ++hits;
    }
    const auto rest = warm.run(s, slice(prompt, shared, static_cast<int64_t>(prompt.size())), 9);
    logits.insert(logits.end(), rest.begin(), rest.end());
    CachedRunner cold(tiny_model(), {.blocks = 4, .slots = 1, .snapshots = 1});
    CachedSequence reference = cold.admit(prompt);
    const auto expected = cold.run(reference, prompt);
    ASSERT_EQ(first_difference(logits, last_rows(expected, static_cast<int64_t>(prompt.size()) - from), vocab()), -1)
        << "round " << round << ", hit at " << from;
    before.emplace(std::move(s));
  }
  before.reset();
  EXPECT_GT(hits, 5);
  EXPECT_GT(warm.cache.prefix.stats().evicted, 5);
  EXPECT_EQ(warm.cache.blocks.held(), warm.cache.blocks.idle());
}

// ---- bounded replay -------------------------------------------------------------------------------------------------

// So few that the last row is not an exact one: it sees the window through two layers.
constexpr int32_t kReplay = 20;

std::string text_of(std::span<const ReplaySegment> segments) {
  return {reinterpret_cast<const char*>(segments.data()), segments.size_bytes()};
}

// The state of a prefix depends on where its prefill ended, and a hit takes over which one that was.
TEST(PrefixState, AHitUnderReplayGoesOnWithItsRecordedHistory) {
  const auto prompt = some_tokens(200, 6);
  const auto question = some_tokens(18, 7);  // not longer than R: the upper layers read the rings of the turn before
  const ReplaySegment segment = replay_segment(kReplay, 0, 200);
  ASSERT_TRUE(segment.drops());
  const std::string history = text_of({&segment, 1});

  CachedRunner warm(tiny_model(), kSizes);
  CachedSequence first = warm.admit(prompt);
  warm.run(first, prompt, 64, segment.kept_from);
  ASSERT_TRUE(warm.publish(first, history));
  const auto uninterrupted = warm.run(first, question, 512, segment.kept_from);

  const auto next = join(prompt, question);
  EXPECT_EQ(warm.admit(next).length(), 0) << "exact requests do not go on from it";
  CachedSequence hit = warm.admit(next, [&](int64_t, std::string_view h) { return h == history; });
  ASSERT_EQ(hit.length(), 200);
  ASSERT_EQ(hit.history, history);
  EXPECT_EQ(first_difference(warm.run(hit, question, 7, segment.kept_from), uninterrupted, vocab()), -1);
  expect_same_sequence(warm, hit, warm, first, "replayed", segment.kept_from);
}

// A snapshot from the middle of a replayed prompt has the layers up to the last KV source; resumed at least R before
// the end of another prompt, it equals that prompt's cold run.
TEST(PrefixState, AMidPromptSnapshotUnderReplayEqualsAColdReplayedRun) {
  const auto tokens = some_tokens(400, 8);
  CachedRunner warm(tiny_model(), kSizes);
  CachedSequence first = warm.admit(tokens);
  const ReplaySegment whole = replay_segment(kReplay, 0, 400);
  warm.run(first, slice(tokens, 0, 256), 100, whole.kept_from);
  ASSERT_TRUE(warm.publish(first, "lower"));

  const auto prompt = join(slice(tokens, 0, 256), some_tokens(90, 12));
  const auto accept = [](int64_t end) {
    return [end](int64_t position, std::string_view history) {
      return history.empty() || (history == "lower" && position + kReplay <= end);
    };
  };
  EXPECT_EQ(warm.admit(slice(prompt, 0, 270), accept(270)).length(), 0) << "less than R before the end";
  CachedSequence hit = warm.admit(prompt, accept(346));
  ASSERT_EQ(hit.length(), 256);
  const ReplaySegment segment = replay_segment(kReplay, 0, 346);
  const auto logits = warm.run(hit, slice(prompt, 256, 346), 60, segment.kept_from);

  CachedRunner cold(tiny_model(), kSizes);
  CachedSequence reference = cold.admit(prompt);
  EXPECT_EQ(first_difference(logits, cold.run(reference, prompt, 128, segment.kept_from), vocab()), -1);
  expect_same_sequence(warm, hit, cold, reference, "resumed", segment.kept_from);
}

// ---- images ---------------------------------------------------------------------------------------------------------

const Model& vision_model() {
  static const Model model = [] {
    const auto dir = testing::long_checkpoint("tiny-vision");
    Checkpoint checkpoint = Checkpoint::open(dir);
    std::vector<int32_t> map = load_engram_token_map(dir / "engram_token_map.json", checkpoint.config());
    Model loaded = load_model(std::move(checkpoint), std::move(map));
    testing::fs::remove_all(dir);
    return loaded;
  }();
  return model;
}

// faults: "A prefix is keyed by tokens alone though an image or a tenant differs."
TEST(PrefixState, AnotherImageOrTenantUnderTheSameTokensRunsCold) {
  const Model& model = vision_model();
  const auto dim = static_cast<size_t>(model.config().dim);
  const int32_t start = 20, span = 30, total = 180;
  auto tokens = some_tokens(total, 2);
  for (int32_t& token : tokens) token %= model.config().vocab_size;
  for (int32_t i = start; i < start + span; ++i) tokens[static_cast<size_t>(i)] = 3;
  struct Image {
    std::vector<bf16> rows;
    ImagePart part;
  };
  CachedRunner warm(model, kSizes);
  const auto image = [&](uint32_t seed) {
    Image out;
    for (const int32_t t : some_tokens(static_cast<int64_t>(span * dim), seed)) {
      out.rows.push_back(to_bf16(static_cast<float>(t - 250) / 300.0f));
    }
    out.part = {.start = start, .count = span, .digest = warm.cache.hasher.digest(std::as_bytes(std::span(out.rows)))};
    return out;
  };
  // Tokens [from, to) of the prompt with the image's rows in them.
  const auto run = [&](CachedRunner& runner, CachedSequence& s, const Image& shown, int32_t to) {
    std::vector<uint8_t> dead;
    std::vector<bf16> rows;
    for (int32_t p = s.length(); p < to; ++p) {
      const bool inside = p >= start && p < start + span;
      dead.push_back(inside ? 1 : 0);
      if (!inside) continue;
      const auto from = shown.rows.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(p - start) * dim);
      rows.insert(rows.end(), from, from + static_cast<ptrdiff_t>(dim));
    }
    return runner.step({{.sequence = &s,
                         .tokens = slice(tokens, s.length(), to),
                         .accepted = {},
                         .replay_from = 0,
                         .dead = dead,
                         .image_rows = rows}})[0];
  };
  const Image cat = image(1), dog = image(2);
  CachedSequence first = warm.admit(tokens, testing::accept_exact, {cat.part}, "tenant");
  run(warm, first, cat, 35);  // inside the image
  ASSERT_TRUE(warm.publish(first));
  run(warm, first, cat, 150);
  ASSERT_TRUE(warm.publish(first));

  EXPECT_EQ(warm.admit(tokens, testing::accept_exact, {dog.part}, "tenant").length(), 0);
  EXPECT_EQ(warm.admit(tokens, testing::accept_exact, {cat.part}, "other").length(), 0);
  EXPECT_EQ(warm.admit(tokens, testing::accept_exact, {}, "tenant").length(), 0);
  const auto expect_equals_cold = [&](CachedSequence& s, const Image& shown) {
    const int32_t from = s.length();
    const auto logits = run(warm, s, shown, total);
    CachedRunner cold(model, kSizes);
    CachedSequence reference = cold.admit(tokens);
    const auto expected = last_rows(run(cold, reference, shown, total), total - from, model.config().vocab_size);
    EXPECT_EQ(first_difference(logits, expected, model.config().vocab_size), -1);
    expect_same_sequence(warm, s, cold, reference, "image");
  };
  CachedSequence same = warm.admit(tokens, testing::accept_exact, {cat.part}, "tenant");
  ASSERT_EQ(same.length(), 150);
  expect_equals_cold(same, cat);
  auto changed = slice(tokens, 0, 100);
  changed[90] ^= 1;
  CachedSequence inside = warm.admit(changed, testing::accept_exact, {cat.part}, "tenant");
  ASSERT_EQ(inside.length(), 35);
  CachedSequence other = warm.admit(tokens, testing::accept_exact, {dog.part}, "tenant");
  expect_equals_cold(other, dog);
}

TEST(StateCopy, RefusesWhatIsOutsideThePools) {
  CachedRunner r(tiny_model(), {.blocks = 4, .slots = 2, .snapshots = 1}, 16);
  Context& context = *r.runner.context;
  StatePools& state = r.runner.state;
  EXPECT_THROW(copy_block(context, state, 0, 4), Error);
  EXPECT_THROW(copy_block(context, state, -1, 0), Error);
  EXPECT_THROW(copy_slot(context, state, 2, 0), Error);
  EXPECT_THROW(save_slot(context, state, 0, r.snapshots, 1), Error);
  EXPECT_THROW(restore_slot(context, state, -1, r.snapshots, 0), Error);
  EXPECT_EQ(r.snapshots.bytes(), slot_bytes(state));
}

// What the memory plan says of a block, a slot and a snapshot is what they take.
TEST(StateCopy, TakesWhatTheMemoryPlanSays) {
  const ModelConfig& config = tiny_model().config();
  PlanOptions options;
  options.sequences = 2;
  options.context = 256;
  options.snapshots = 3;
  const MemoryPlan plan = plan_memory(config, options);
  CachedRunner r(tiny_model(), {.blocks = 4, .slots = 2, .snapshots = 3}, 16);
  EXPECT_EQ(static_cast<uint64_t>(slot_bytes(r.runner.state)), plan.slot_bytes);
  EXPECT_EQ(static_cast<uint64_t>(r.runner.state.cache.block_bytes), plan.block_bytes);
  EXPECT_EQ(static_cast<uint64_t>(r.snapshots.bytes() * r.snapshots.count()), plan.snapshot_bytes);
  EXPECT_EQ(r.runner.state.blocks_count, plan.blocks);
}

}  // namespace
}  // namespace mdi
