// Faults of numbers: values that are not numbers, rows that must not be read, output that depends on the company.
// (That greedy output does not depend on batch, chunks, preemption, prefix hits and drafts is in invariance_test.cpp.)
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "serving.h"

namespace mdi {
namespace {

using testing::alone;
using testing::listening;
using testing::listening_ops;
using testing::request;
using testing::Served;
using testing::some_tokens;

EngineOptions options() {
  EngineOptions o;
  o.slots = 4;
  o.max_length = 600;
  o.max_rows = 128;
  return o;
}

TEST(Numbers, LogitsThatAreNotNumbersEndTheirRequestAndNobodyElses) {
  listening() = {};
  EngineOptions o = options();
  o.draft = false;
  o.slots = 3;
  Served served(o, nullptr, &listening_ops());
  std::vector<RequestId> ids;
  for (uint32_t i = 0; i < 3; ++i) ids.push_back(served.submit(request(some_tokens(20, i), 10)));
  while (served.answer(ids[2]).tokens.size() < 4) served.engine->step();
  listening().on_logits = [](int32_t sample, std::span<float> row) {
    if (sample == 1) std::fill(row.begin(), row.end(), std::nanf(""));
  };
  served.engine->step();
  listening().on_logits = nullptr;
  served.engine->run();
  EXPECT_EQ(served.answer(ids[1]).end, EndReason::kError);
  EXPECT_NE(served.answer(ids[1]).error.find("not a finite number"), std::string::npos);
  for (const uint32_t i : {0u, 2u}) {
    EXPECT_EQ(served.answer(ids[i]).tokens, alone(some_tokens(20, i), 10));
  }
  served.expect_nothing_held();
}

// Every byte that was not written holds a NaN at the start: pools, buffers, slots, snapshots.
TEST(Numbers, MemoryFullOfNaNIsNeverRead) {
  static const std::unique_ptr<CpuContext> plain = make_cpu_context(1);
  static const Ops poisoned = [] {
    Ops made = *plain->ops;
    made.allocate = [](Context& c, int64_t bytes) {
      void* memory = plain->ops->allocate(c, bytes);
      std::memset(memory, 0xFF, static_cast<size_t>(bytes));  // NaN in every format that has one, -1 in indices
      return memory;
    };
    made.allocate_host = [](Context& c, int64_t bytes) {
      void* memory = plain->ops->allocate_host(c, bytes);
      std::memset(memory, 0xFF, static_cast<size_t>(bytes));
      return memory;
    };
    return made;
  }();
  EngineOptions o = options();
  o.snapshot_min_tokens = 1;
  o.blocks = 64;
  o.draft_always = true;
  o.preempt_every = 6;
  Served served(o, nullptr, &poisoned);
  for (int round = 0; round < 2; ++round) {
    std::vector<RequestId> ids;
    for (uint32_t i = 0; i < 8; ++i) ids.push_back(served.submit(request(some_tokens(3 + 41 * i, i), 15)));
    served.engine->run();
    for (uint32_t i = 0; i < 8; ++i) {
      EXPECT_EQ(served.answer(ids[i]).tokens, alone(some_tokens(3 + 41 * i, i), 15)) << i;
    }
  }
  EXPECT_GT(served.engine->metrics().hits, 0);
}

}  // namespace
}  // namespace mdi
