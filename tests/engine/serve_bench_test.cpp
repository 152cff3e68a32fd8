// Traces that are read, made and played.
#include "engine/serve_bench.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../model/tiny_model.h"
#include "core/error.h"
#include "serving.h"

namespace mdi {
namespace {

namespace fs = std::filesystem;

std::vector<TraceRequest> read(const std::string& text) {
  const fs::path file = fs::temp_directory_path() / ("mdi-trace-" + std::to_string(getpid()));
  std::ofstream(file) << text;
  try {
    auto trace = read_trace(file);
    fs::remove(file);
    return trace;
  } catch (...) {
    fs::remove(file);
    throw;
  }
}

TEST(ServeBench, ReadsATraceInTheOrderOfArrival) {
  const auto trace = read(
      "{\"arrival\": 2, \"prompt_tokens\": 10, \"output_tokens\": 3}\n\n"
      "{\"arrival\": 0.5, \"prompt_tokens\": 20, \"output_tokens\": 4, \"prefix_group\": 7, \"prefix_tokens\": 12, "
      "\"n\": 2}\n");
  ASSERT_EQ(trace.size(), 2u);
  EXPECT_EQ(trace[0].arrival, 0.5);
  EXPECT_EQ(trace[0].prompt_tokens, 20);
  EXPECT_EQ(trace[0].prefix_group, 7);
  EXPECT_EQ(trace[0].n, 2);
  EXPECT_EQ(trace[1].output_tokens, 3);
  EXPECT_EQ(trace[1].prefix_group, -1);
}

TEST(ServeBench, ABadTraceIsRefusedWithItsLine) {
  const auto refuses = [](const std::string& text, const char* names) {
    try {
      read(text);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(names), std::string::npos) << e.what();
    }
  };
  const std::string good = "{\"arrival\": 0, \"prompt_tokens\": 1, \"output_tokens\": 1}\n";
  refuses("", "no requests");
  refuses(good + "{\"arrival\": 0}\n", ":2: output_tokens: missing");
  refuses(good + "nonsense\n", ":2");
  refuses("[1]\n", "expected an object");
  refuses("{\"arrival\": -1, \"prompt_tokens\": 1, \"output_tokens\": 1}\n", "arrival");
  refuses("{\"arrival\": \"x\", \"prompt_tokens\": 1, \"output_tokens\": 1}\n", "arrival");
  refuses("{\"arrival\": 0, \"prompt_tokens\": 1.5, \"output_tokens\": 1}\n", "prompt_tokens");
  refuses("{\"arrival\": 0, \"prompt_tokens\": 99999999999, \"output_tokens\": 1}\n", "prompt_tokens");
  refuses("{\"arrival\": 0, \"prompt_tokens\": 1, \"output_tokens\": 0}\n", "output_tokens");
  refuses("{\"arrival\": 0, \"prompt_tokens\": 1, \"output_tokens\": 1, \"colour\": 1}\n", "colour");
  EXPECT_THROW(read_trace("/nonexistent/trace"), Error);
}

TEST(ServeBench, ASyntheticTraceIsAFunctionOfItsOptions) {
  const SyntheticTrace options{.requests = 500, .rate = 10, .shared = 0.4, .seed = 3};
  const auto a = synthetic_trace(options);
  const auto b = synthetic_trace(options);
  int shared = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].arrival, b[i].arrival);
    EXPECT_EQ(trace_prompt(a[i], i, 512), trace_prompt(b[i], i, 512));
    EXPECT_GE(a[i].output_tokens, options.output_min);
    EXPECT_LE(a[i].output_tokens, options.output_max);
    EXPECT_GE(a[i].arrival, i > 0 ? a[i - 1].arrival : 0.0);
    shared += a[i].prefix_group >= 0 ? 1 : 0;
  }
  EXPECT_NEAR(a.back().arrival, 50, 12);
  EXPECT_NEAR(shared, 200, 50);
  EXPECT_NE(synthetic_trace({.requests = 500, .rate = 10, .seed = 4})[0].arrival, a[0].arrival);
  EXPECT_THROW(synthetic_trace({.requests = 0}), Error);
  EXPECT_THROW(synthetic_trace({.prompt_min = 9, .prompt_max = 8}), Error);
}

TEST(ServeBench, RequestsOfAGroupBeginAlikeAndGoOnDifferently) {
  const TraceRequest r{.prompt_tokens = 40, .prefix_group = 2, .prefix_tokens = 25};
  const auto a = trace_prompt(r, 1, 512);
  const auto b = trace_prompt(r, 2, 512);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 25, b.begin()));
  EXPECT_NE(a, b);
  for (int32_t token : a) EXPECT_TRUE(token >= 0 && token < 512);
}

// One slot, so that which request finds whose prefix does not depend on the machine's speed.
TEST(ServeBench, PlaysATraceAndReportsIt) {
  const auto context = make_cpu_context(1);
  EngineOptions o;
  o.slots = 1;
  o.max_length = 400;
  o.snapshot_min_tokens = 1;
  Engine engine(*context, testing::tiny_model(), nullptr, o);
  auto trace =
      synthetic_trace({.requests = 12, .rate = 40, .prompt_max = 60, .output_max = 12, .shared = 1, .groups = 1});
  trace.push_back({.arrival = trace.back().arrival, .prompt_tokens = 30, .output_tokens = 5, .n = 3});
  const ServeReport report = play_trace(engine, trace, {}, 512);
  EXPECT_EQ(report.requests, 13);
  EXPECT_EQ(report.refused, 0);
  EXPECT_EQ(report.failed, 0);
  EXPECT_GT(report.seconds, 0);
  EXPECT_GT(report.first_token.p50, 0);
  EXPECT_GE(report.first_token.most, report.first_token.p99);
  EXPECT_GT(report.per_token.p90, 0);
  int64_t wanted = 15;
  for (size_t i = 0; i < 12; ++i) wanted += trace[i].output_tokens;
  EXPECT_EQ(report.generated_tokens, wanted);
  EXPECT_EQ(report.engine.generated_tokens, wanted);
  // The second sees where the two part, and the ones from the third on find a snapshot there.
  EXPECT_EQ(report.engine.hits, 10);
  const auto json = nlohmann::json::parse(serve_json(report));
  EXPECT_EQ(json.at("generated_tokens"), wanted);
  EXPECT_GT(json.at("step_seconds").size(), 0u);
  EXPECT_NE(serve_text(report).find("time to first token"), std::string::npos);
}

// Also one that comes late: before the first is played.
TEST(ServeBench, ATraceWithARequestThatCannotBeServedIsNotBegun) {
  const auto context = make_cpu_context(1);
  EngineOptions o;
  o.slots = 1;
  o.max_length = 400;
  Engine engine(*context, testing::tiny_model(), nullptr, o);
  const auto refuses = [&engine](const TraceRequest& late, const char* what) {
    try {
      play_trace(engine, {{.prompt_tokens = 30, .output_tokens = 300}, late}, {}, 512);
      ADD_FAILURE() << "played: " << what;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("request 2"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what();
    }
  };
  refuses({.arrival = 1, .n = 17}, "n: expected 1 to 16");
  refuses({.arrival = 1, .prompt_tokens = 390, .output_tokens = 11}, "do not fit 400");
  EXPECT_EQ(engine.metrics().steps, 0);
  EXPECT_FALSE(engine.step());
  EXPECT_EQ(play_trace(engine, {{.prompt_tokens = 30, .output_tokens = 5}}, {}, 512).generated_tokens, 5);
}

// Behind the last request, and before it: no report of what was left.
TEST(ServeBench, AStepThatFailsIsAnErrorAndNoReport) {
  const std::vector<std::vector<TraceRequest>> traces = {{{.prompt_tokens = 30, .output_tokens = 5}},
                                                         {{.prompt_tokens = 30, .output_tokens = 5}, {.arrival = 0.2}}};
  for (const auto& trace : traces) {
    testing::listening() = {};
    const auto context = make_cpu_context(1);
    context->ops = &testing::listening_ops();
    EngineOptions o;
    o.slots = 1;
    o.max_length = 400;
    Engine engine(*context, testing::tiny_model(), nullptr, o);
    testing::listening().head_throws = true;
    try {
      play_trace(engine, trace, {}, 512);
      ADD_FAILURE() << "a report of a trace of " << trace.size();
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("the backend fails"), std::string::npos) << e.what();
    }
  }
  testing::listening() = {};
}

TEST(ServeBench, RefusedRequestsAreCounted) {
  const auto context = make_cpu_context(1);
  EngineOptions o;
  o.slots = 1;
  o.max_length = 400;
  o.max_queue = 0;
  Engine engine(*context, testing::tiny_model(), nullptr, o);
  const ServeReport report = play_trace(engine, synthetic_trace({.requests = 5, .rate = 0, .prompt_max = 60}), {}, 512);
  EXPECT_EQ(report.refused, 5);
  EXPECT_EQ(report.requests, 0);
  EXPECT_EQ(report.generated_tokens, 0);
  EXPECT_FALSE(serve_text(report).empty());
}

}  // namespace
}  // namespace mdi
