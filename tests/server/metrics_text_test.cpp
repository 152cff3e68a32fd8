// The metrics' text: every sample belongs to a family that was announced, once, and histograms add up.
#include "server/metrics_text.h"

#include <gtest/gtest.h>

#include <ctime>
#include <map>
#include <set>
#include <sstream>
#include <string>

namespace mdi {
namespace {

struct Parsed {
  std::map<std::string, std::string> types;  // by family
  std::map<std::string, double> samples;     // by name and labels
};

// Strict: throws std::runtime_error for whatever Prometheus' own parser would refuse.
Parsed parse(const std::string& text) {
  Parsed p;
  std::istringstream lines(text);
  std::string family;
  std::set<std::string> helped;
  const auto fail = [](const std::string& line) { throw std::runtime_error("line: " + line); };
  if (text.empty() || text.back() != '\n') fail("no end");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first, second, name;
    words >> first >> second >> name;
    if (first == "#") {
      if (second == "HELP") {
        if (!helped.insert(name).second || line.size() < 10 + name.size()) fail(line);
      } else {
        std::string type;
        words >> type;
        if (second != "TYPE" || helped.count(name) == 0 || !p.types.emplace(name, type).second) fail(line);
        family = name;
      }
      continue;
    }
    const size_t space = line.rfind(' ');
    const std::string key = line.substr(0, space);
    const std::string sample = key.substr(0, key.find('{'));
    const bool histogram = p.types[family] == "histogram";
    const std::string suffix = sample.substr(std::min(sample.size(), family.size()));
    if (sample.rfind(family, 0) != 0 ||
        (histogram ? suffix != "_bucket" && suffix != "_sum" && suffix != "_count" : !suffix.empty())) {
      fail(line);
    }
    if ((key.find('{') == std::string::npos) != (key.back() != '}')) fail(line);
    size_t read = 0;
    if (!p.samples.emplace(key, std::stod(line.substr(space + 1), &read)).second) fail(line);
    if (read != line.size() - space - 1) fail(line);
  }
  return p;
}

MetricsInput some() {
  MetricsInput in;
  in.model_name = "a \"model\" with \\ and\nmore";
  in.version = "1";
  in.engine.waiting = 3;
  in.engine.hit_tokens = 1234567890123;
  for (const double s : {0.00005, 0.001, 0.02, 0.02, 0.5, 1e9}) in.engine.first_token_seconds.add(s);
  in.engine.proposed = {10, 5};
  in.engine.accepted = {7, 2};
  in.engine.ended_cancelled = 4;
  in.engine.decode_stages.steps = 5;
  in.engine.decode_stages.seconds[Stage::kRouted] = 0.25;
  in.engine.host_seconds[static_cast<size_t>(HostPart::kMasks)] = 1.5;
  in.service.errors[0] = 7;
  in.early_errors[0] = 2;
  in.early_errors[1] = 3;
  in.http.answered[2] = 11;
  in.memory = {{"weights", 1000}, {"cache_pools", 2000}};
  in.ready = true;
  return in;
}

TEST(MetricsText, WhatWasCountedIsThere) {
  const Parsed p = parse(metrics_text(some()));
  EXPECT_EQ(p.samples.at("mdi_requests_waiting"), 3);
  EXPECT_EQ(p.samples.at("mdi_prefix_hit_tokens_total"), 1234567890123);
  EXPECT_EQ(p.samples.at("mdi_draft_accepted_total{position=\"1\"}"), 2);
  EXPECT_EQ(p.samples.at("mdi_requests_ended_total{reason=\"cancelled\"}"), 4);
  EXPECT_EQ(p.samples.at("mdi_errors_total{kind=\"invalid\"}"), 9);
  EXPECT_EQ(p.samples.at("mdi_errors_total{kind=\"authentication\"}"), 3);
  EXPECT_EQ(p.samples.at("mdi_http_answers_total{code=\"2xx\"}"), 11);
  EXPECT_EQ(p.samples.at("mdi_memory_bytes{part=\"cache_pools\"}"), 2000);
  EXPECT_EQ(p.samples.at("mdi_ready"), 1);
  EXPECT_EQ(p.samples.at("mdi_info{version=\"1\",model=\"a \\\"model\\\" with \\\\ and more\"}"), 1);
  for (const auto& [family, type] : p.types) {
    EXPECT_EQ(family.rfind("mdi_", 0) == 0 || family.rfind("process_", 0) == 0, true) << family;
    EXPECT_EQ(type == "counter", family.size() > 6 && family.substr(family.size() - 6) == "_total") << family;
  }
}

TEST(MetricsText, HistogramsAreCumulative) {
  const Parsed p = parse(metrics_text(some()));
  std::map<double, double> buckets;
  for (const auto& [key, value] : p.samples) {
    const std::string begin = "mdi_time_to_first_token_seconds_bucket{le=\"";
    if (key.rfind(begin, 0) == 0) buckets[std::stod(key.substr(begin.size()))] = value;  // stod reads +Inf, too
  }
  ASSERT_GT(buckets.size(), 10u);
  double before = 0;
  for (const auto& [bound, count] : buckets) {
    EXPECT_GE(count, before);
    before = count;
    double expected = 0;
    for (const double s : {0.00005, 0.001, 0.02, 0.02, 0.5, 1e9}) expected += s <= bound ? 1 : 0;
    EXPECT_EQ(count, expected) << bound;
  }
  EXPECT_EQ(before, 6);
  EXPECT_EQ(p.samples.at("mdi_time_to_first_token_seconds_count"), 6);
}

// What costs nothing is there with 0, so that a sum over stages is one over all of them.
TEST(MetricsText, EveryStageAndPartIsThere) {
  const Parsed p = parse(metrics_text(some()));
  for (const std::string step : {"prefill", "decode"}) {
    for (size_t i = 0; i < kStages; ++i) {
      const std::string stage = stage_name(static_cast<Stage>(i));
      const double seconds = step == "decode" && stage == "routed experts" ? 0.25 : 0;
      EXPECT_EQ(p.samples.at("mdi_step_stage_seconds_total{step=\"" + step + "\",stage=\"" + stage + "\"}"), seconds);
    }
  }
  EXPECT_EQ(p.samples.at("mdi_step_stage_steps_total{step=\"prefill\"}"), 0);
  EXPECT_EQ(p.samples.at("mdi_step_stage_steps_total{step=\"decode\"}"), 5);
  for (size_t i = 0; i < kHostParts; ++i) {
    const std::string part = host_part_name(static_cast<HostPart>(i));
    EXPECT_EQ(p.samples.at("mdi_step_host_seconds_total{part=\"" + part + "\"}"), part == "masks" ? 1.5 : 0);
  }
}

TEST(MetricsText, TheProcessIsThisOne) {
  EXPECT_GT(process_resident_bytes(), 1 << 20);
  EXPECT_GE(process_open_files(), 3);
  const auto now = static_cast<double>(std::time(nullptr));
  EXPECT_LT(process_start_time(), now + 2);
  EXPECT_GT(process_start_time(), now - 3600);
}

}  // namespace
}  // namespace mdi
