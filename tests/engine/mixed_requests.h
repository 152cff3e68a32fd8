// 64 mixed requests (under a sanitizer fewer) and the ways in which an engine may run them, all of which have to give
// the same tokens. Used by the tests on the CPU and by the check on the GPU (tests/cuda/engine_check.cpp).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "../model/tiny_model.h"
#include "../pace.h"
#include "engine/engine.h"
#include "engine/generator.h"

namespace mdi::testing {

inline constexpr int kMixed = kPace > 1 ? 24 : 64;
inline constexpr int64_t kMixedLength = 420;

// Lengths from one token to several blocks; a third of them share one beginning, another third another one.
inline std::vector<int32_t> mixed_prompt(int i) {
  static const auto shared = some_tokens(300, 1);
  static const auto other = some_tokens(300, 2);
  const int64_t length = 1 + (i * 37) % 290;
  std::vector<int32_t> prompt;
  if (i % 3 == 1) prompt = slice(shared, 0, length * 2 / 3);
  if (i % 3 == 2) prompt = slice(other, 0, length * 3 / 4);
  const auto own = some_tokens(length - static_cast<int64_t>(prompt.size()), 100 + static_cast<uint32_t>(i));
  prompt.insert(prompt.end(), own.begin(), own.end());
  return prompt;
}

inline int32_t mixed_tokens(int i) { return 3 + (i * 11) % 22; }

// Every other request samples, some of them with a filter or penalties.
inline SamplingParams mixed_sampling(int i, bool greedy) {
  SamplingParams p{.temperature = 0};
  if (i % 16 == 6) p.frequency_penalty = 0.8f;
  if (i % 16 == 10) p.repetition_penalty = 1.3f;
  if (greedy || i % 2 == 0) return p;
  p.temperature = 0.9f;
  p.seed = static_cast<uint64_t>(i);
  if (i % 4 == 3) p.top_k = 40;
  if (i % 8 == 5) p.top_p = 0.8f;
  if (i % 8 == 7) p.min_p = 0.02f;
  return p;
}

struct MixedVariant {
  std::string name;
  EngineOptions options;
  bool greedy = false;  // no sampling: drafts keep the distribution, and the tokens only where there is no choice
  int rounds = 1;
  // What makes sure that the variant is what its name says; empty: it is.
  std::function<std::string(const EngineMetrics&)> missing;
};

inline std::string need(bool holds, const char* what, int64_t found) {
  return holds ? "" : std::string(what) + ", found " + std::to_string(found);
}

inline std::vector<MixedVariant> mixed_variants() {
  EngineOptions plain;
  plain.slots = 12;
  plain.max_length = kMixedLength;
  plain.max_rows = 512;
  plain.snapshots = 0;
  plain.draft = false;
  std::vector<MixedVariant> all;
  const auto add = [&](const char* name, auto change, std::function<std::string(const EngineMetrics&)> missing = {}) {
    MixedVariant v{.name = name, .options = plain, .missing = std::move(missing)};
    change(v);
    all.push_back(std::move(v));
  };
  add("OneAfterTheOther", [](MixedVariant& v) { v.options.slots = 1; });
  add(
      "Batched", [](MixedVariant&) {},
      // It holds where nobody ends in the step before, which takes the whole number of requests.
      [](const EngineMetrics& m) {
        return need(m.plans_ahead_used > 0 || kPace > 1, "a plan made ahead", m.plans_ahead_used);
      });
  add(
      "WithoutPlanningAhead", [](MixedVariant& v) { v.options.plan_ahead = false; },
      [](const EngineMetrics& m) { return need(m.plans_ahead == 0, "no plan ahead", m.plans_ahead); });
  // Requests of which few have penalties, so that most steps go on without the host.
  add(
      "FewAtOnce", [](MixedVariant& v) { v.options.slots = 3; },
      [](const EngineMetrics& m) {
        return need(m.steps_chained > m.steps / 4, "a quarter of all steps chained", m.steps_chained) +
               need(m.tokens_on_device > m.generated_tokens / 2, "half of all tokens chosen on the device",
                    m.tokens_on_device);
      });
  const auto on_the_host = [](const EngineMetrics& m) {
    return need(m.steps_chained == 0, "no step chained", m.steps_chained) +
           need(m.tokens_on_device == 0, "no token chosen on the device", m.tokens_on_device);
  };
  add(
      "BatchedOnTheHost", [](MixedVariant& v) { v.options.device_sampling = false; }, on_the_host);
  add(
      "FewAtOnceOnTheHost",
      [](MixedVariant& v) {
        v.options.device_sampling = false;
        v.options.slots = 3;
      },
      on_the_host);
  add(
      "PrefixHitsAndPreemptionOnTheHost",
      [](MixedVariant& v) {
        v.options.device_sampling = false;
        v.options.snapshots = 20;
        v.options.snapshot_min_tokens = 1;
        v.options.blocks = 10;
        v.options.preempt_every = 7;
        v.rounds = 2;
      },
      on_the_host);
  add("ChunksOf13", [](MixedVariant& v) { v.options.max_rows = 13; });
  add("ChunksOf50", [](MixedVariant& v) { v.options.max_rows = 50; });
  add("ChunksOf177", [](MixedVariant& v) { v.options.max_rows = 177; });
  add("LatencyTarget", [](MixedVariant& v) { v.options.tpot_target = 0.004; });
  add(
      "Preempted",
      [](MixedVariant& v) {
        v.options.blocks = 9;
        v.options.preempt_every = 4;
      },
      [](const EngineMetrics& m) {
        return need(m.preemptions > kMixed / 2, "preemptions for every other request", m.preemptions);
      });
  add(
      "PrefixHits",
      [](MixedVariant& v) {
        v.options.snapshots = 200;
        v.options.blocks = 400;
        v.options.snapshot_min_tokens = 1;
        v.rounds = 2;
      },
      // All of the second round but a prompt of one token.
      [](const EngineMetrics& m) { return need(m.hits >= kMixed - 1, "a hit for each but one", m.hits); });
  add(
      "PreemptedWithFewSnapshots",
      [](MixedVariant& v) {
        v.options.snapshots = 7;
        v.options.snapshot_min_tokens = 1;
        v.options.blocks = 10;
        v.options.preempt_every = 7;
        v.rounds = 2;
      },
      [](const EngineMetrics& m) {
        return need(m.preemptions > 5, "preemptions", m.preemptions) + need(m.hits > 0, "hits", m.hits) +
               need(m.snapshots_evicted > 0, "evictions", m.snapshots_evicted);
      });
  add(
      "Drafts",
      [](MixedVariant& v) {
        v.options.draft = v.options.draft_always = true;
        v.greedy = true;
      },
      [](const EngineMetrics& m) { return need(m.accepted[0] > 0, "accepted proposals", m.accepted[0]); });
  add("DraftsWherePaying", [](MixedVariant& v) {
    v.options.draft = true;
    v.greedy = true;
  });
  add(
      "DraftsPreemptedWithHits",
      [](MixedVariant& v) {
        v.options.draft = v.options.draft_always = true;
        v.options.snapshots = 9;
        v.options.snapshot_min_tokens = 1;
        v.options.blocks = 10;
        v.options.preempt_every = 5;
        v.greedy = true;
        v.rounds = 2;
      },
      [](const EngineMetrics& m) {
        return need(m.preemptions > 5, "preemptions", m.preemptions) + need(m.hits > 0, "hits", m.hits);
      });
  return all;
}

// [kMixed] what each request gets alone, one sequence at a time, without an engine.
inline std::vector<std::vector<int32_t>> mixed_alone(Context& context, const Model& model, bool greedy) {
  Generator generator(context, model, kMixedLength, 512);
  std::vector<std::vector<int32_t>> all;
  for (int i = 0; i < kMixed; ++i) {
    // The generator knows no penalties: an engine with one slot and nothing else says what those give.
    const SamplingParams sampling = mixed_sampling(i, greedy);
    if (has_penalties(sampling)) {
      EngineOptions o;
      o.slots = 1;
      o.max_length = kMixedLength;
      o.snapshots = 0;
      o.draft = false;
      Engine engine(context, model, nullptr, o);
      std::vector<int32_t> tokens;
      Request r;
      r.prompt = mixed_prompt(i);
      r.max_tokens = mixed_tokens(i);
      r.sampling = sampling;
      r.on_event = [&tokens](const Event& e) {
        for (const GeneratedToken& t : e.tokens) tokens.push_back(t.id);
      };
      engine.submit(std::move(r));
      engine.run();
      all.push_back(std::move(tokens));
      continue;
    }
    GenerateRequest r;
    r.prompt = mixed_prompt(i);
    r.max_tokens = mixed_tokens(i);
    r.sampling = sampling;
    all.push_back(generator.run(r).tokens);
  }
  return all;
}

struct MixedRun {
  EngineMetrics metrics;
  int64_t wrong = 0;        // requests with other tokens than alone, or without their last event
  std::string first_wrong;  // and the first of them
  bool clean = false;       // nothing is held when nothing runs
};

// Submits all requests, some while others run already.
inline MixedRun run_mixed(Context& context, const Model& model, const MixedVariant& v,
                          const std::vector<std::vector<int32_t>>& expected) {
  Engine engine(context, model, nullptr, v.options);
  MixedRun run;
  for (int round = 0; round < v.rounds; ++round) {
    std::vector<std::vector<int32_t>> tokens(kMixed);
    std::vector<bool> ended(kMixed);
    for (int k = 0; k < kMixed; ++k) {
      const int i = round % 2 == 0 ? k : kMixed - 1 - k;  // back again: what was used last is found first
      Request r;
      r.prompt = mixed_prompt(i);
      r.max_tokens = mixed_tokens(i);
      r.sampling = mixed_sampling(i, v.greedy);
      r.on_event = [&, i](const Event& e) {
        for (const GeneratedToken& t : e.tokens) tokens[static_cast<size_t>(i)].push_back(t.id);
        ended[static_cast<size_t>(i)] = e.last && e.end == EndReason::kLength;
      };
      engine.submit(std::move(r));
      if (k % 5 == 0) engine.step();
    }
    engine.run();
    for (size_t i = 0; i < kMixed; ++i) {
      if (ended[i] && tokens[i] == expected[i]) continue;
      ++run.wrong;
      if (run.first_wrong.empty()) {
        run.first_wrong = "request " + std::to_string(i) + ", round " + std::to_string(round);
      }
    }
  }
  run.metrics = engine.metrics();
  const EngineMetrics& m = run.metrics;
  run.clean = m.running == 0 && m.waiting == 0 && m.slots_free == m.slots_total &&
              m.blocks_free + m.blocks_idle == m.blocks_total;
  return run;
}

// The samples of one request, which share its prompt: they do not depend on how much room there is for them.
inline std::vector<std::vector<int32_t>> forked_samples(Context& context, const Model& model, int32_t slots,
                                                        int32_t blocks, SamplingParams sampling) {
  EngineOptions o;
  o.slots = slots;
  o.blocks = blocks;
  o.max_length = kMixedLength;
  o.snapshots = 0;
  o.draft = false;
  Engine engine(context, model, nullptr, o);
  std::vector<std::vector<int32_t>> samples(5);
  Request r;
  r.prompt = mixed_prompt(10);
  r.max_tokens = 20;
  r.n = 5;
  r.sampling = std::move(sampling);
  r.on_event = [&samples](const Event& e) {
    for (const GeneratedToken& t : e.tokens) samples[static_cast<size_t>(e.sample)].push_back(t.id);
  };
  engine.submit(std::move(r));
  Request beside;
  beside.prompt = mixed_prompt(11);
  beside.max_tokens = 20;
  engine.submit(std::move(beside));
  engine.run();
  return samples;
}

}  // namespace mdi::testing
