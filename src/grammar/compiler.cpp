// Compiling off the step loop: limits, a bounded cache, one compilation for requests that want the same.
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <list>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "core/error.h"
#include "core/printable.h"
#include "grammar/compiled_grammar.h"
#include "grammar/grammar.h"
#include "grammar/tool_rules.h"
#include "text/chat_render.h"

namespace mdi {
namespace {

using Grammar = std::shared_ptr<const CompiledGrammar>;
using Clock = std::chrono::steady_clock;

void append(std::string& key, std::string_view part) {
  key += std::to_string(part.size()) + ":";
  key += part;
}

// Everything that the grammar depends on.
std::string key_of(const GrammarSpec& spec) {
  std::string key = std::to_string(static_cast<int>(spec.kind)) + "," +
                    std::to_string(static_cast<int>(spec.tool_choice)) + (spec.strict ? "s" : "-") +
                    (spec.parallel ? "p" : "-");
  append(key, spec.schema);
  append(key, spec.pattern);
  append(key, spec.tool_name);
  key += std::to_string(spec.choices.size());
  for (const std::string& choice : spec.choices) append(key, choice);
  for (const GrammarTool& tool : spec.tools) {
    append(key, tool.name);
    append(key, tool.strict ? tool.parameters : "");  // otherwise it says nothing
    key += tool.strict ? "s" : "-";
  }
  return key;
}

std::atomic<int64_t> g_running{0};

// The token of tool calls gets a byte that no text has: XGrammar does not look at tokens without bytes.
std::vector<std::string> token_bytes(const Tokenizer& tokenizer) {
  std::vector<std::string> bytes(static_cast<size_t>(tokenizer.size()));
  for (int32_t id = 0; id < tokenizer.size(); ++id) {
    const std::string_view text = tokenizer.bytes(id);
    if (tokenizer.marker(text) != id) bytes[static_cast<size_t>(id)] = text;
  }
  if (const auto dsml = tokenizer.marker(marker::kDsml))
    bytes[static_cast<size_t>(*dsml)].assign(1, static_cast<char>(0xFF));
  return bytes;
}

}  // namespace

int64_t running_compilations() { return g_running; }

bool constrains(const GrammarSpec& spec) {
  return spec.kind != GrammarSpec::Kind::kNone || spec.tool_choice != GrammarSpec::ToolChoice::kFree;
}

namespace {
// Without the place, which is the caller's to say.
std::string message_of(const std::exception& e) {
  const std::string_view what = e.what();
  constexpr std::string_view kWhere = "grammar: ";
  return std::string(what.starts_with(kWhere) ? what.substr(kWhere.size()) : what);
}
}  // namespace

struct GrammarCompiler::State {
  // One compilation; those who want the same wait for it.
  struct Job {
    std::string key, source, client;
    std::thread thread;
    pid_t id = 0;                     // the thread's, once it runs
    bool done = false, late = false;  // late: given up by those who waited
    Grammar grammar;
    std::string problem;

    // Of the thread, which has not been joined.
    double seconds() {
      clockid_t clock{};
      timespec now{};
      if (pthread_getcpuclockid(thread.native_handle(), &clock) != 0 || clock_gettime(clock, &now) != 0) return 0;
      return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
    }
  };
  struct Kept {
    std::string key;
    Grammar grammar;
    std::string problem;      // not empty: in place of the grammar, which was too slow
    Clock::time_point until;  // then it may be tried again
    size_t bytes = 0;
  };

  State(const Tokenizer& tokenizer, int64_t vocab_size, int32_t eos_id, GrammarLimits l)
      : limits(l),
        tokens(tokenizer.size()),
        vocab(vocab_size),
        eos(eos_id),
        think_end(tokenizer.marker(marker::kThinkEnd).value_or(-1)),
        dsml(tokenizer.marker(marker::kDsml).value_or(-1)),
        vocabulary(token_bytes(tokenizer), vocab_size, eos_id) {}

  // Null: unknown. Throws for a grammar that was too slow.
  Grammar find(const std::string& key, const std::string& source) {
    const auto at = index.find(key);
    if (at == index.end()) return nullptr;
    note_too_slow(*at->second);
    if (!at->second->problem.empty() && Clock::now() > at->second->until) {
      kept.erase(at->second);
      index.erase(at);
      return nullptr;
    }
    kept.splice(kept.begin(), kept, at->second);
    if (!at->second->problem.empty()) {
      ++counters.refused;
      throw Error(source, at->second->problem);
    }
    ++counters.hits;
    return at->second->grammar;
  }

  void keep(const std::string& key, const Grammar& grammar, const std::string& problem) {
    kept.push_front({.key = key, .grammar = grammar, .problem = problem, .until = refused_until()});
    index[key] = kept.begin();
    trim();
  }

  Clock::time_point refused_until() const {
    return Clock::now() +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limits.refuse_seconds));
  }

  // What a request has found in use: from now on the key alone is kept.
  void note_too_slow(Kept& entry) const {
    if (!entry.grammar || !entry.grammar->too_slow()) return;
    entry.problem = message_of(TooSlow("grammar"));
    entry.until = refused_until();
    entry.grammar.reset();
  }

  // Masks are worked out in use, so what a grammar takes is asked again.
  void trim() {
    bytes = 0;
    for (auto at = kept.begin(); at != kept.end();) {
      note_too_slow(*at);
      at->bytes = (at->grammar ? at->grammar->bytes() : 0) + at->key.size();
      if (bytes + at->bytes > limits.max_cache_bytes) {
        index.erase(at->key);
        at = kept.erase(at);
      } else {
        bytes += at->bytes;
        ++at;
      }
    }
  }

  // Threads that have ended. Called with the lock held.
  void reap() {
    for (auto at = jobs.begin(); at != jobs.end();) {
      if (!(*at)->done) {
        ++at;
        continue;
      }
      (*at)->thread.join();
      at = jobs.erase(at);
    }
  }

  std::shared_ptr<Job> running(const std::string& key) {
    for (const auto& job : jobs) {
      if (!job->done && job->key == key) return job;
    }
    return nullptr;
  }

  int64_t stuck() const {
    return std::count_if(jobs.begin(), jobs.end(), [](const auto& job) { return job->late && !job->done; });
  }

  bool stuck_of(const std::string& client) const {
    return std::any_of(jobs.begin(), jobs.end(),
                       [&](const auto& job) { return job->late && !job->done && job->client == client; });
  }

  void run(const std::shared_ptr<Job>& job, const std::string& ebnf) {
    Grammar grammar;
    std::string problem;
    bool too_slow = false;
    {
      const std::lock_guard lock(mutex);
      job->id = gettid();
    }
    try {
      grammar =
          std::make_shared<const CompiledGrammar>(vocabulary, ebnf, job->source, tokens, vocab, eos, think_end, limits);
    } catch (const TooSlow& e) {
      problem = message_of(e);
      too_slow = true;
    } catch (const std::exception& e) {
      problem = message_of(e);
    }
    const std::lock_guard lock(mutex);
    job->grammar = grammar;
    job->problem = problem;
    job->done = true;
    if (grammar || too_slow) keep(job->key, grammar, problem);
    ended.notify_all();
  }

  const GrammarLimits limits;
  const int64_t tokens, vocab;
  const int32_t eos, think_end, dsml;
  const MatcherVocabulary vocabulary;

  std::mutex mutex;
  std::condition_variable ended;  // a compilation, or all
  bool stopping = false;
  std::list<std::shared_ptr<Job>> jobs;
  std::list<Kept> kept;  // the most recently used first
  std::unordered_map<std::string, std::list<Kept>::iterator> index;
  size_t bytes = 0;
  GrammarCounters counters;
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, int64_t vocab, int32_t eos, GrammarLimits limits) {
  if (vocab < tokenizer.size() || vocab > INT32_MAX) {
    throw Error("grammar", "expected a vocabulary of at least the tokenizer's " + std::to_string(tokenizer.size()) +
                               " tokens, found " + std::to_string(vocab));
  }
  if (eos < 0 || eos >= tokenizer.size()) throw Error("grammar", "the tokenizer has no end-of-sentence token");
  state_ = std::make_shared<State>(tokenizer, vocab, eos, limits);
}

// What still runs holds its part of the state, and nothing of others.
GrammarCompiler::~GrammarCompiler() {
  stop();
  const std::lock_guard lock(state_->mutex);
  state_->reap();
  for (const auto& job : state_->jobs) job->thread.detach();
}

void GrammarCompiler::stop() {
  const std::lock_guard lock(state_->mutex);
  state_->stopping = true;
  state_->ended.notify_all();
}

std::shared_ptr<const CompiledGrammar> GrammarCompiler::compile(const GrammarSpec& spec, const std::string& client) {
  State& state = *state_;
  const std::string source = answer_source(spec);
  // Places and names in messages are the client's: one short line of them.
  const auto refuse = [&](const Error& error) {
    const std::lock_guard lock(state.mutex);
    ++state.counters.refused;
    const std::string_view what = error.what();
    const size_t colon = std::min(what.find(": "), what.size());
    const std::string where = printable(what.substr(0, colon));
    throw Error(where == "grammar" ? source : where, printable(what.substr(std::min(colon + 2, what.size())), 320));
  };
  const std::string key = key_of(spec);
  if (key.size() > state.limits.max_bytes) {
    refuse(Error("grammar", "schemas, patterns and choices: expected at most " +
                                std::to_string(state.limits.max_bytes) + " bytes together, found " +
                                std::to_string(key.size())));
  }
  if (spec.tools.size() > static_cast<size_t>(state.limits.max_tools)) {
    refuse(Error("tools", "expected at most " + std::to_string(state.limits.max_tools) + " tools, found " +
                              std::to_string(spec.tools.size())));
  }
  {
    const std::lock_guard lock(state.mutex);
    if (Grammar found = state.find(key, source)) return found;
  }
  AnswerGrammar answer;
  try {
    answer = answer_grammar(spec, state.dsml, state.limits);
  } catch (const Error& error) {
    refuse(error);
  }

  std::unique_lock lock(state.mutex);
  state.reap();
  if (Grammar found = state.find(key, source)) return found;
  const auto refuse_now = [&state](const std::string& why) {
    ++state.counters.refused;
    throw GrammarBusy(why);
  };
  const char* ending = "The server is shutting down.";
  if (state.stopping) refuse_now(ending);
  std::shared_ptr<State::Job> job = state.running(key);
  if (!job) {
    // While some are stuck, only small ones may start: they take cores already.
    if (answer.cost > state.limits.max_cost / 20) {
      if (state.stuck_of(client)) {
        refuse_now("What the answer has to follow cannot be compiled while another one of yours takes too long.");
      }
      if (state.stuck() >= state.limits.max_stuck) {
        refuse_now("What the answer has to follow cannot be compiled while too many others take too long.");
      }
    }
    job = std::make_shared<State::Job>();
    job->key = key;
    job->source = source;
    job->client = client;
    // It waits for the lock before it ends.
    job->thread = std::thread([shared = state_, job, ebnf = std::move(answer.ebnf)]() mutable {
      shared->run(job, ebnf);
      shared.reset();
      --g_running;
    });
    ++g_running;
    ++state.counters.compiled;
    state.jobs.push_back(job);
  }
  // The time is the job's own: on a busy machine it waits for a processor, which is no fault of the grammar.
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(10 * state.limits.max_compile_seconds));
  while (!job->done && !state.stopping && Clock::now() < deadline &&
         job->seconds() < state.limits.max_compile_seconds) {
    state.ended.wait_for(lock, std::chrono::milliseconds(20), [&] { return job->done || state.stopping; });
  }
  if (!job->done && state.stopping) refuse_now(ending);
  if (!job->done) {
    job->late = true;
    // It goes on behind all others. On Linux this is the thread's own.
    if (job->id != 0) setpriority(PRIO_PROCESS, static_cast<id_t>(job->id), 10);
    ++state.counters.refused;
    throw Error(source, "compiling takes longer than " + std::to_string(state.limits.max_compile_seconds).substr(0, 4) +
                            " seconds: simplify the schema or the pattern");
  }
  if (!job->grammar) {
    ++state.counters.refused;
    throw Error(source, printable(job->problem, 320));
  }
  return job->grammar;
}

GrammarCounters GrammarCompiler::counters() const {
  const std::lock_guard lock(state_->mutex);
  GrammarCounters counters = state_->counters;
  state_->trim();
  counters.cached = static_cast<int64_t>(state_->kept.size());
  counters.cached_bytes = static_cast<int64_t>(state_->bytes);
  counters.stuck = state_->stuck();
  return counters;
}

}  // namespace mdi
