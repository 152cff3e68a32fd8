// The cache on the GPU: a prefix hit, forked samples and copied blocks give the very bits of a cold run, logits and
// proposals, while snapshots go through pinned memory without anybody waiting; and what the copies take.
#include <algorithm>
#include <chrono>
#include <numeric>

#include "../engine/cached_runner.h"
#include "find_golden.h"
#include "harness.h"
#include "model/place.h"

namespace mdi::check {

namespace {

using testing::CachedRunner;
using testing::CachedSequence;
using testing::first_difference;
using testing::slice;
using testing::some_tokens;

constexpr CacheSizes kSizes{.blocks = 24, .slots = 4, .snapshots = 4};

std::vector<int32_t> join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Subject {
  Harness& h;
  const Model& model;

  CachedRunner runner() const {
    return {model, {&h.cuda(), [](Context*) {}}, kSizes};
  }
  void expect_bits(const std::string& what, const std::string& shape, const std::vector<float>& found,
                   const std::vector<float>& expected) const {
    const int64_t row = first_difference(found, expected, model.config().vocab_size);
    h.expect(what, shape, row < 0, row < 0 ? "" : "row " + std::to_string(row) + " differs");
  }
  void expect_proposals(const std::string& what, const std::string& shape, CachedRunner& a, const CachedSequence& x,
                        CachedRunner& b, const CachedSequence& y) const {
    const auto found = a.propose(x, 11), expected = b.propose(y, 11);
    h.expect(what, shape + ", proposals",
             found.first == expected.first && first_difference(found.second, expected.second, 1) < 0);
  }
};

// The sequence that took the snapshot goes on at once, in its slot and in the block that the snapshot ends in; the one
// that is restored is asked for before any of that is waited for.
void check_hit(const Subject& s, int32_t position) {
  const auto tokens = some_tokens(position + 60, 3);
  const std::string shape = "position " + std::to_string(position);
  CachedRunner warm = s.runner();
  CachedSequence first = warm.admit(tokens);
  warm.run(first, slice(tokens, 0, position), 50);
  const bool published = warm.publish(first);
  warm.run(first, some_tokens(20, 77));
  CachedSequence hit = warm.admit(tokens);
  s.h.expect("prefix hit", shape + ", found", published && hit.length() == position);
  if (hit.length() != position) return;

  CachedRunner cold = s.runner();
  CachedSequence reference = cold.admit(tokens);
  cold.run(reference, slice(tokens, 0, position), 50);
  s.expect_proposals("prefix hit", shape, warm, hit, cold, reference);
  s.expect_bits("prefix hit", shape + ", logits", warm.run(hit, slice(tokens, position, position + 60), 13),
                cold.run(reference, slice(tokens, position, position + 60)));
  s.expect_proposals("prefix hit", shape + " and 60 tokens", warm, hit, cold, reference);
}

void check_forks(const Subject& s, int64_t length) {
  const std::string shape = "at " + std::to_string(length);
  CachedRunner runner = s.runner();
  const auto prompt = some_tokens(length, 9);
  std::vector<CachedSequence> samples;
  samples.push_back(runner.admit(prompt));
  runner.run(samples[0], prompt);
  for (int i = 0; i < 2; ++i) samples.push_back(runner.fork(samples[0]));
  std::vector<std::vector<float>> logits(3);
  for (int64_t t = 0; t < 40; t += 5) {
    std::vector<CachedRunner::Part> parts;
    for (uint32_t i = 0; i < 3; ++i) {
      parts.push_back({.sequence = &samples[i], .tokens = slice(some_tokens(40, 40 + i), t, t + 5)});
    }
    const auto rows = runner.step(parts);
    for (size_t i = 0; i < 3; ++i) logits[i].insert(logits[i].end(), rows[i].begin(), rows[i].end());
  }
  for (uint32_t i = 0; i < 3; ++i) {
    CachedRunner cold = s.runner();
    CachedSequence alone = cold.admit(prompt);
    cold.run(alone, prompt);
    s.expect_bits("forked samples", shape + ", sample " + std::to_string(i), logits[i],
                  cold.run(alone, some_tokens(40, 40 + i)));
    s.expect_proposals("forked samples", shape, runner, samples[i], cold, alone);
  }
}

// Pools so small that buffers and blocks go from hand to hand.
void check_reuse(const Subject& s) {
  CachedRunner warm(s.model, {&s.h.cuda(), [](Context*) {}}, {.blocks = 10, .slots = 2, .snapshots = 3});
  int hits = 0;
  for (uint32_t round = 0; round < 16; ++round) {
    const auto kind = static_cast<uint32_t>(some_tokens(round + 1, 1).back()) % 4;
    const auto shared = static_cast<int32_t>(130 + 30 * kind);
    const auto prompt = join(some_tokens(shared, kind), some_tokens(20, 100 + round));
    CachedSequence q = warm.admit(prompt);
    if (q.length() > 0) ++hits;
    if (q.length() == 0) {
      warm.run(q, slice(prompt, 0, shared));
      warm.publish(q);
    }
    const auto rest = warm.run(q, slice(prompt, shared, static_cast<int64_t>(prompt.size())), 9);
    CachedRunner cold = s.runner();
    CachedSequence reference = cold.admit(prompt);
    cold.run(reference, slice(prompt, 0, shared));
    s.expect_bits("small pools", "round " + std::to_string(round), rest,
                  cold.run(reference, slice(prompt, shared, static_cast<int64_t>(prompt.size()))));
  }
  s.h.expect("small pools", "hits", hits > 2);
}

// Released sizes: a slot is 43 rings of 128 rows of 528 bytes and what else it has, a block 890 * 128 bytes.
void time_copies(Harness& h) {
  constexpr int64_t kSlot = int64_t{43} * 128 * 528 + 4 * 4096 + 12, kBlock = 890 * 128;
  constexpr int kTimes = 200;
  CudaContext& context = h.cuda();
  auto* device = static_cast<std::byte*>(context.ops->allocate(context, 8 * kSlot));
  const auto start = std::chrono::steady_clock::now();
  auto* host = static_cast<std::byte*>(context.ops->allocate_host(context, 64 * kSlot));
  const double pinned = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("pinned memory of 64 snapshots, %.0f MB: %.1f ms\n", 64e-6 * kSlot, 1e3 * pinned);
  const auto time = [&](const char* what, int64_t bytes, const auto& copy) {
    for (int i = 0; i < 10; ++i) copy(i);
    cudaStreamSynchronize(context.stream);
    const auto from = std::chrono::steady_clock::now();
    for (int i = 0; i < kTimes; ++i) copy(i);
    const auto asked = std::chrono::steady_clock::now();
    cudaStreamSynchronize(context.stream);
    const auto done = std::chrono::steady_clock::now();
    const double us = std::chrono::duration<double, std::micro>(done - from).count() / kTimes;
    std::printf("%s, %lld bytes: %.1f us, %.1f GB/s; the call returns after %.1f us\n", what,
                static_cast<long long>(bytes), us, static_cast<double>(bytes) / us * 1e-3,
                std::chrono::duration<double, std::micro>(asked - from).count() / kTimes);
  };
  const auto& ops = *context.ops;
  time("save a slot", kSlot, [&](int i) { ops.copy(context, host + i % 64 * kSlot, device + i % 4 * kSlot, kSlot); });
  time("restore a slot", kSlot,
       [&](int i) { ops.copy(context, device + i % 4 * kSlot, host + i % 64 * kSlot, kSlot); });
  time("copy a slot", kSlot,
       [&](int i) { ops.copy(context, device + (4 + i % 4) * kSlot, device + i % 4 * kSlot, kSlot); });
  time("copy a block", kBlock,
       [&](int i) { ops.copy(context, device + (4 + i % 4) * kSlot, device + i % 4 * kSlot, kBlock); });
  ops.release_host(context, host);
  ops.release(context, device);
}

int run(int argc, char** argv) {
  Harness h("prefix", argc, argv, int64_t{1} << 30);
  find_golden();
  Model model = testing::load_tiny_model();
  const DeviceBuffer placed = place_weights(h.cuda(), model);
  const Subject s{h, model};
  for (const int32_t position : {1, 15, 16, 17, 127, 128, 129, 255, 257}) {
    if (!h.small() || position == 129) check_hit(s, position);
  }
  if (h.small()) return h.finish();
  for (const int64_t length : {128, 201}) check_forks(s, length);
  check_reuse(s);
  time_copies(h);
  return h.finish();
}

}  // namespace

}  // namespace mdi::check

int main(int argc, char** argv) { return mdi::check::guarded(mdi::check::run, argc, argv); }
