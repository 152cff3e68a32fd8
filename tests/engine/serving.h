// An engine on the tiny checkpoint that collects what its requests are sent, and a backend that can be listened to.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../model/tiny_model.h"
#include "engine/engine.h"
#include "engine/generator.h"

namespace mdi::testing {

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<Logprobs> logprobs;
  std::string text, error;
  std::optional<EndReason> end;
  Usage usage;
  int events = 0;
  bool last = false;
};

struct Served {
  std::unique_ptr<CpuContext> context;
  std::map<std::pair<RequestId, int32_t>, Answer> answers;
  std::unique_ptr<Engine> engine;

  explicit Served(EngineOptions options, const Tokenizer* tokenizer = nullptr, const Ops* ops = nullptr)
      : context(make_cpu_context(1)) {
    if (ops != nullptr) context->ops = ops;
    engine = std::make_unique<Engine>(*context, tiny_model(), tokenizer, std::move(options));
  }

  // 0: the queue is full.
  RequestId submit(Request request) {
    if (!request.on_event) request.on_event = [this](const Event& event) { take(event); };
    return engine->submit(std::move(request)).value_or(0);
  }
  void take(const Event& event) {
    Answer& answer = answers[{event.request, event.sample}];
    EXPECT_FALSE(answer.end.has_value()) << "an event after the last one of a sample";
    for (const GeneratedToken& token : event.tokens) {
      answer.tokens.push_back(token.id);
      answer.logprobs.push_back(token.logprobs);
    }
    answer.text += event.text;
    answer.error = event.error;
    answer.end = event.end;
    answer.usage = event.usage;
    answer.last = event.last;
    ++answer.events;
  }
  const Answer& answer(RequestId id, int32_t sample = 0) { return answers[{id, sample}]; }

  // Nothing is held when nothing runs: all blocks are free or held by nobody but the prefix cache.
  void expect_nothing_held() const {
    const EngineMetrics m = engine->metrics();
    EXPECT_EQ(m.running, 0);
    EXPECT_EQ(m.waiting, 0);
    EXPECT_EQ(m.slots_free, m.slots_total);
    EXPECT_EQ(m.blocks_free + m.blocks_idle, m.blocks_total);
  }
};

inline Request request(std::vector<int32_t> prompt, int32_t max_tokens, SamplingParams sampling = {.temperature = 0}) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.sampling = std::move(sampling);
  return r;
}

// What one sequence alone generates, without engine, batch, cache or drafts.
inline std::vector<int32_t> alone(const std::vector<int32_t>& prompt, int32_t max_tokens,
                                  const SamplingParams& sampling = {.temperature = 0}) {
  static const std::unique_ptr<CpuContext> context = make_cpu_context(1);
  Generator generator(*context, tiny_model(), static_cast<int64_t>(prompt.size()) + max_tokens, 512);
  GenerateRequest r;
  r.prompt = prompt;
  r.max_tokens = max_tokens;
  r.sampling = sampling;
  return generator.run(r).tokens;
}

// The CPU's operations with some of them replaced; what they do is set by the test that uses them.
struct Listening {
  int64_t allocations = 0;
  int32_t largest_table = 0, largest_rows = 0;
  // Called with each row of logits that the head wrote, in order: may change it.
  std::function<void(int32_t sample, std::span<float> logits)> on_logits;
  bool head_throws = false;
};

inline Listening& listening() {
  static Listening state;
  return state;
}

inline const Ops& listening_ops() {
  static const std::unique_ptr<CpuContext> plain = make_cpu_context(1);
  static const Ops ops = [] {
    Ops made = *plain->ops;
    made.allocate = [](Context& c, int64_t bytes) {
      ++listening().allocations;
      return plain->ops->allocate(c, bytes);
    };
    made.allocate_host = [](Context& c, int64_t bytes) {
      ++listening().allocations;
      return plain->ops->allocate_host(c, bytes);
    };
    made.embed = [](Context& c, const StepView& step, const EmbedArgs& args) {
      listening().largest_table = std::max(listening().largest_table, step.max_blocks);
      listening().largest_rows = std::max(listening().largest_rows, step.rows);
      plain->ops->embed(c, step, args);
    };
    made.head = [](Context& c, const StepView& step, const HeadArgs& args) {
      if (listening().head_throws) throw std::runtime_error("the backend fails");
      plain->ops->head(c, step, args);
      for (int32_t i = 0; i < args.samples && listening().on_logits; ++i) {
        const auto vocab = static_cast<size_t>(args.head.n);
        listening().on_logits(i, {args.logits + static_cast<size_t>(i) * vocab, vocab});
      }
    };
    return made;
  }();
  return ops;
}

}  // namespace mdi::testing
