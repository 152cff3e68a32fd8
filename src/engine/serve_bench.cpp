#include "engine/serve_bench.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "core/error.h"
#include "core/json.h"

namespace mdi {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void check_trace_request(const TraceRequest& r, const std::string& where) {
  const auto refuse = [&where](const char* name, const char* expected) {
    throw Error(where, std::string(name) + ": expected " + expected);
  };
  if (!(r.arrival >= 0 && r.arrival < 1e7)) refuse("arrival", "0 to 10,000,000 seconds");
  if (r.prompt_tokens < 1) refuse("prompt_tokens", "1 or more");
  if (r.output_tokens < 1) refuse("output_tokens", "1 or more");
  if (r.prefix_tokens < 0) refuse("prefix_tokens", "0 or more");
  if (r.n < 1) refuse("n", "1 or more");
}

TraceRequest trace_line(const std::string& line, const std::string& where) {
  const nlohmann::json object = parse_json(line, where);
  if (!object.is_object()) throw Error(where, "expected an object");
  TraceRequest r;
  std::set<std::string> missing = {"arrival", "prompt_tokens", "output_tokens"};
  for (const auto& item : object.items()) {
    const std::string& key = item.key();
    const nlohmann::json& value = item.value();
    missing.erase(key);
    const auto integer = [&](int64_t most) {
      if (!value.is_number_integer() || value < 0 || value > most) {
        throw Error(where, key + ": expected a whole number from 0 to " + std::to_string(most));
      }
      return value.get<int64_t>();
    };
    constexpr int64_t kMost = 1 << 24;
    if (key == "arrival" && value.is_number()) {
      r.arrival = value.get<double>();
    } else if (key == "prompt_tokens") {
      r.prompt_tokens = static_cast<int32_t>(integer(kMost));
    } else if (key == "output_tokens") {
      r.output_tokens = static_cast<int32_t>(integer(kMost));
    } else if (key == "prefix_group") {
      r.prefix_group = integer(int64_t{1} << 52);
    } else if (key == "prefix_tokens") {
      r.prefix_tokens = static_cast<int32_t>(integer(kMost));
    } else if (key == "n") {
      r.n = static_cast<int32_t>(integer(kMost));
    } else {
      throw Error(where, key + ": a key that is not known, or not a number");
    }
  }
  if (!missing.empty()) throw Error(where, *missing.begin() + ": missing");
  check_trace_request(r, where);
  return r;
}

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&values](double q) {
    const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(values.size())));
    return values[std::max<size_t>(rank, 1) - 1];
  };
  return {.p50 = at(0.5), .p90 = at(0.9), .p99 = at(0.99), .most = values.back()};
}

}  // namespace

std::vector<TraceRequest> read_trace(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) throw Error(file.string(), "cannot be opened");
  std::vector<TraceRequest> trace;
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    trace.push_back(trace_line(line, file.string() + ":" + std::to_string(number)));
  }
  if (trace.empty()) throw Error(file.string(), "it has no requests");
  std::stable_sort(trace.begin(), trace.end(), [](const auto& a, const auto& b) { return a.arrival < b.arrival; });
  return trace;
}

std::vector<TraceRequest> synthetic_trace(const SyntheticTrace& o) {
  const auto refuse = [](const char* what) { throw Error("synthetic trace", what); };
  if (o.requests < 1) refuse("requests: expected 1 or more");
  if (!(o.rate >= 0)) refuse("rate: expected 0 (all at once) or more");
  if (o.prompt_min < 1 || o.prompt_max < o.prompt_min) refuse("prompt tokens: expected 1 <= least <= most");
  if (o.output_min < 1 || o.output_max < o.output_min) refuse("output tokens: expected 1 <= least <= most");
  if (!(o.shared >= 0 && o.shared <= 1)) refuse("shared: expected 0 to 1");
  if (o.groups < 1 || o.prefix_tokens < 0) refuse("groups: expected 1 or more, of 0 or more tokens");
  std::vector<TraceRequest> trace;
  double time = 0;
  for (int32_t i = 0; i < o.requests; ++i) {
    const RandomKey key{.seed = o.seed, .sequence = 0, .position = static_cast<uint64_t>(i)};
    const auto length = [&key](uint32_t draw, int32_t least, int32_t most) {
      const double ratio = (static_cast<double>(most) + 1) / least;
      return std::clamp(static_cast<int32_t>(least * std::pow(ratio, random_uniform(key, draw))), least, most);
    };
    TraceRequest r;
    if (o.rate > 0) time += -std::log1p(-random_uniform(key, 0)) / o.rate;
    r.arrival = time;
    r.prompt_tokens = length(1, o.prompt_min, o.prompt_max);
    r.output_tokens = length(2, o.output_min, o.output_max);
    if (random_uniform(key, 3) < o.shared) {
      r.prefix_group = static_cast<int64_t>(random_uniform(key, 4) * o.groups);
      r.prefix_tokens = o.prefix_tokens;
      r.prompt_tokens += o.prefix_tokens;
    }
    trace.push_back(r);
  }
  return trace;
}

std::vector<int32_t> trace_prompt(const TraceRequest& r, size_t index, int32_t vocab) {
  std::vector<int32_t> tokens;
  tokens.reserve(static_cast<size_t>(r.prompt_tokens));
  for (int32_t i = 0; i < r.prompt_tokens; ++i) {
    const bool shared = r.prefix_group >= 0 && i < r.prefix_tokens;
    const RandomKey key{.seed = shared ? 1u : 2u,
                        .sequence = shared ? static_cast<uint64_t>(r.prefix_group) : index,
                        .position = static_cast<uint64_t>(i)};
    tokens.push_back(static_cast<int32_t>(random_uniform(key, 0) * vocab));
  }
  return tokens;
}

namespace {

// What the engine's thread writes for one sample; read when all have ended.
struct Seen {
  double first = 0, last = 0;
  int64_t tokens = 0;
  bool failed = false;
};

// Of one run. Its requests hold it too: they may still send events when the run was given up.
struct Played {
  std::vector<std::vector<Seen>> seen;
  std::mutex mutex;
  std::condition_variable all_ended;
  int64_t open = 0;
  Clock::time_point start;
};

Request trace_request(const TraceRequest& t, size_t index, const ServeLoad& load, int32_t vocab) {
  Request r;
  r.prompt = trace_prompt(t, index, vocab);
  r.max_tokens = t.output_tokens;
  r.n = t.n;
  r.sampling = load.sampling;
  r.draft = load.draft;
  return r;
}

void note(Played& played, size_t index, const Event& event) {
  const double now = seconds_since(played.start);
  Seen& s = played.seen[index][static_cast<size_t>(event.sample)];
  if (!event.tokens.empty()) {
    if (s.tokens == 0) s.first = now;
    s.last = now;
    s.tokens += static_cast<int64_t>(event.tokens.size());
  }
  s.failed = event.end && *event.end != EndReason::kLength && *event.end != EndReason::kStop;
  if (!event.last) return;
  const std::lock_guard lock(played.mutex);
  if (--played.open == 0) played.all_ended.notify_one();
}

struct StopAtEnd {
  Engine& engine;
  ~StopAtEnd() { engine.stop(); }
};

// Submits each request at its time and waits until all have ended. Returns when each was submitted, -1: refused.
std::vector<double> submit_all(Engine& engine, const std::vector<TraceRequest>& trace, const ServeLoad& load,
                               int32_t vocab, const std::shared_ptr<Played>& played) {
  std::vector<double> arrived(trace.size(), -1);
  played->start = Clock::now();
  engine.start();
  const StopAtEnd stop{engine};
  for (size_t i = 0; i < trace.size(); ++i) {
    Request r = trace_request(trace[i], i, load, vocab);
    played->seen[i].resize(static_cast<size_t>(trace[i].n));
    r.on_event = [played, i](const Event& event) { note(*played, i, event); };
    const std::chrono::duration<double> after(trace[i].arrival / load.speed);
    std::this_thread::sleep_until(played->start + std::chrono::duration_cast<Clock::duration>(after));
    const double now = seconds_since(played->start);
    {
      const std::lock_guard lock(played->mutex);
      ++played->open;
    }
    if (engine.submit(std::move(r))) {
      arrived[i] = now;
      continue;
    }
    const std::lock_guard lock(played->mutex);
    --played->open;
  }
  std::unique_lock lock(played->mutex);
  played->all_ended.wait(lock, [&played] { return played->open == 0; });
  return arrived;
}

}  // namespace

ServeReport play_trace(Engine& engine, const std::vector<TraceRequest>& trace, const ServeLoad& load, int32_t vocab) {
  for (size_t i = 0; i < trace.size(); ++i) {
    try {
      engine.check(trace_request(trace[i], i, load, vocab));
    } catch (const Error& e) {
      throw Error("trace, request " + std::to_string(i + 1) + " by arrival", e.what());
    }
  }
  const auto played = std::make_shared<Played>();
  played->seen.resize(trace.size());
  const std::vector<double> arrived = submit_all(engine, trace, load, vocab, played);
  // Figures of an engine that broke down say nothing.
  if (const std::string failure = engine.failure(); !failure.empty()) throw Error("engine", failure);

  ServeReport report;
  std::vector<double> first, per_token;
  double begin = -1;
  double end = 0;
  for (size_t i = 0; i < trace.size(); ++i) {
    if (arrived[i] < 0) {
      ++report.refused;
      continue;
    }
    ++report.requests;
    if (begin < 0) begin = arrived[i];
    report.prompt_tokens += trace[i].prompt_tokens;
    for (const Seen& s : played->seen[i]) {
      report.failed += s.failed ? 1 : 0;
      report.generated_tokens += s.tokens;
      if (s.tokens == 0) continue;
      first.push_back(s.first - arrived[i]);
      if (s.tokens > 1) per_token.push_back((s.last - s.first) / static_cast<double>(s.tokens - 1));
      end = std::max(end, s.last);
    }
  }
  report.seconds = begin < 0 ? 0 : end - begin;
  report.first_token = spread_of(std::move(first));
  report.per_token = spread_of(std::move(per_token));
  report.engine = engine.metrics();
  return report;
}

namespace {

std::string spread_line(const char* name, const Spread& s) {
  return fmt::format("{:<22} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f}\n", name, 1e3 * s.p50, 1e3 * s.p90, 1e3 * s.p99,
                     1e3 * s.most);
}

double rate(int64_t count, double seconds) { return seconds > 0 ? static_cast<double>(count) / seconds : 0; }

double hit_share(const EngineMetrics& m) {
  return m.prompt_tokens > 0 ? static_cast<double>(m.hit_tokens) / static_cast<double>(m.prompt_tokens) : 0;
}

nlohmann::ordered_json spread_json(const Spread& s) {
  return {{"p50", s.p50}, {"p90", s.p90}, {"p99", s.p99}, {"max", s.most}};
}

}  // namespace

std::string serve_text(const ServeReport& r) {
  const EngineMetrics& m = r.engine;
  std::string out =
      fmt::format("{} requests in {:.3f} s, {} refused, {} failed\n", r.requests, r.seconds, r.refused, r.failed);
  out += fmt::format("prompt {} tokens, {:.1f} tok/s; generated {} tokens, {:.1f} tok/s\n\n", r.prompt_tokens,
                     rate(r.prompt_tokens, r.seconds), r.generated_tokens, rate(r.generated_tokens, r.seconds));
  out += fmt::format("{:<22} {:>9} {:>9} {:>9} {:>9}\n", "ms", "p50", "p90", "p99", "max");
  out += spread_line("time to first token", r.first_token);
  out += spread_line("time per token", r.per_token);
  out += fmt::format("\nprefix hits {} of {} requests, {:.1f}% of prompt tokens; {} snapshots evicted\n", m.hits,
                     m.lookups, 100 * hit_share(m), m.snapshots_evicted);
  out += fmt::format("preemptions {}; plans made ahead and used {} of {}\n", m.preemptions, m.plans_ahead_used,
                     m.plans_ahead);
  for (size_t i = 0; i < m.proposed.size() && m.draft_calls > 0; ++i) {
    out += fmt::format("draft place {}: {} of {} accepted\n", i + 1, m.accepted[i], m.proposed[i]);
  }
  if (m.steps_drafts_off > 0) out += fmt::format("steps with drafting off, a loss: {}\n", m.steps_drafts_off);
  out += fmt::format("\n{} steps, {:.1f} rows each\n", m.steps, rate(m.rows, static_cast<double>(m.steps)));
  const Histogram& h = m.step_seconds;
  const int64_t most = std::max<int64_t>(1, *std::max_element(h.counts.begin(), h.counts.end()));
  for (int i = 0; i < Histogram::kBuckets; ++i) {
    const int64_t count = h.counts[static_cast<size_t>(i)];
    if (count == 0) continue;
    const auto bar = static_cast<size_t>((40 * count + most - 1) / most);
    out += fmt::format("  <= {:>9.2f} ms {:>7} {}\n", 1e3 * Histogram::upper_bound(i), count, std::string(bar, '#'));
  }
  return out;
}

std::string serve_json(const ServeReport& r) {
  const EngineMetrics& m = r.engine;
  nlohmann::ordered_json out;
  out["requests"] = r.requests;
  out["refused"] = r.refused;
  out["failed"] = r.failed;
  out["seconds"] = r.seconds;
  out["prompt_tokens"] = r.prompt_tokens;
  out["generated_tokens"] = r.generated_tokens;
  out["prompt_tokens_per_second"] = rate(r.prompt_tokens, r.seconds);
  out["generated_tokens_per_second"] = rate(r.generated_tokens, r.seconds);
  out["time_to_first_token"] = spread_json(r.first_token);
  out["time_per_token"] = spread_json(r.per_token);
  out["prefix_hits"] = m.hits;
  out["prefix_hit_share"] = hit_share(m);
  out["preemptions"] = m.preemptions;
  out["steps"] = m.steps;
  out["rows"] = m.rows;
  out["steps_drafts_off"] = m.steps_drafts_off;
  out["draft_proposed"] = m.proposed;
  out["draft_accepted"] = m.accepted;
  out["step_seconds"] = nlohmann::ordered_json::array();
  for (int i = 0; i < Histogram::kBuckets; ++i) {
    const int64_t count = m.step_seconds.counts[static_cast<size_t>(i)];
    if (count > 0) out["step_seconds"].push_back({{"at_most", Histogram::upper_bound(i)}, {"count", count}});
  }
  return out.dump() + "\n";
}

}  // namespace mdi
