// What stories about the cache share: requests that show their logits, and the engine that has seen nothing.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "serving.h"

namespace mdi::testing::stories {

inline EngineOptions options() {
  EngineOptions o;
  o.slots = 4;
  o.max_length = 700;
  o.max_rows = 96;
  o.draft = false;
  return o;
}

inline std::vector<int32_t> join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A request that shows its logits: the 20 most likely of each row.
inline Request telling(std::vector<int32_t> prompt, int32_t max_tokens = 12) {
  Request r = request(std::move(prompt), max_tokens);
  r.logprobs = 20;
  return r;
}

inline Answer answer_of(Served& served, Request r) {
  const RequestId id = served.submit(std::move(r));
  served.engine->run();
  return served.answer(id);
}

// What an engine that has seen nothing answers.
inline Answer cold_answer(Request r, EngineOptions o = options()) {
  o.snapshots = 0;
  Served served(std::move(o));
  return answer_of(served, std::move(r));
}

inline void expect_same(const Answer& found, const Answer& expected, const std::string& what) {
  EXPECT_EQ(found.tokens, expected.tokens) << what;
  EXPECT_EQ(found.end, expected.end) << what;
  ASSERT_EQ(found.logprobs.size(), expected.logprobs.size()) << what;
  for (size_t i = 0; i < found.logprobs.size(); ++i) {
    const Logprobs &a = found.logprobs[i], &b = expected.logprobs[i];
    ASSERT_EQ(std::memcmp(&a.logprob, &b.logprob, sizeof a.logprob), 0) << what << ", token " << i;
    ASSERT_EQ(a.top.size(), b.top.size()) << what;
    for (size_t k = 0; k < a.top.size(); ++k) {
      ASSERT_EQ(a.top[k].token, b.top[k].token) << what << ", token " << i << ", place " << k;
      ASSERT_EQ(std::memcmp(&a.top[k].logprob, &b.top[k].logprob, sizeof(float)), 0) << what << ", token " << i;
    }
  }
}

}  // namespace mdi::testing::stories
