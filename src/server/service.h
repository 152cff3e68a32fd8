// What all endpoints share: the engine, the tokenizer, the memory of answers, the grammar compiler, the workers, and
// the way from a parsed request to parts of its answer.
//
// Four kinds of threads: the transport's, which must not be held up; workers, which parse, render, tokenise and
// compile; the engine's; and one that turns the engine's events into answer parts and calls the endpoints back.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "grammar/grammar.h"
#include "http/server.h"
#include "server/answer.h"
#include "server/api_error.h"
#include "server/images.h"
#include "text/chat_message.h"
#include "text/chat_render.h"
#include "text/chat_replay.h"

namespace mdi {

class WorkerPool;
class EventThread;
class Turns;

struct ServiceOptions {
  std::string model_name;                  // what clients call the model
  int64_t created = 0;                     // Unix time of the model, for /v1/models
  bool thinking = true;                    // reasoning where a request does not say
  int effort = 75;                         // 1 to 100, where a request does not say
  float temperature = 1.0f;                // where a request does not say
  float top_p = 0.95f;                     // where a request does not say
  int32_t max_tokens = 0;                  // where a request does not say; 0: what the context leaves
  double timeout = 0;                      // seconds of a request, queue included; 0: none
  int workers = 2;                         // threads; one more where there is one only (worker_pool.h)
  size_t max_jobs = 1024;                  // that wait for a worker; a single client may have half of them
  size_t max_running_per_client = 0;       // generations of one client, waiting ones included; 0: no limit
  double keep_alive = 10;                  // seconds without news after which a stream says that it lives; 0: never
  bool separate_clients = false;           // clients with different keys share no prefixes
  bool allow_remote_images = false;        // image URLs other than data: may be fetched
  size_t memory_bytes = size_t{64} << 20;  // of answers, so that they come back as the same tokens
  GrammarLimits grammar;
};

// One request to generate, as both APIs put it.
struct Generation {
  // The prompt: a conversation, or, where it has no messages, tokens.
  std::vector<ChatMessage> messages;
  bool thinking = true;
  int effort = 75;
  std::vector<int32_t> prompt;
  std::vector<RequestImage> images;  // of the messages, whose image parts hold their numbers

  SamplingParams sampling;
  std::optional<int32_t> max_tokens;           // none: ServiceOptions::max_tokens
  std::string max_tokens_name = "max_tokens";  // what the client calls it
  int32_t n = 1;
  std::optional<int32_t> logprobs;  // and this many of the most likely tokens
  std::vector<std::string> stop;
  bool ignore_eos = false;  // go on to max_tokens, or as far as the grammar does
  // Draft layers may be used. What is drawn at random then depends on how many proposals were verified, which depends
  // on time: not where the same seed has to give the same answer.
  bool draft = true;
  GrammarSpec grammar;
  std::string salt;      // prefixes are shared between equal ones only
  std::string client;    // client_of() its HTTP request
  bool further = false;  // of a request of which one was taken: no limit of requests counts it again
};

// One part after the other, from the service's event thread; must not block. The part with `last` comes always, exactly
// once, and may come before generate() has returned. What throws ends the request, except for a part of silence.
using AnswerCallback = std::function<void(const AnswerPart& part)>;

// From any thread, any number of times: the request's next part is its last one, and the engine stops within a step.
using CancelGeneration = std::function<void()>;

struct ServiceCounters {
  int64_t jobs_waiting = 0, jobs_running = 0, jobs_done = 0, jobs_refused = 0;
  int64_t generations = 0;  // running or waiting now
  int64_t errors[10] = {};  // answers by ApiErrorKind
  int64_t memory_bytes = 0;
  GrammarCounters grammar;
};

class Service {
 public:
  // Context and model outlive the service, as the tokenizer does. Throws mdi::Error for options out of range, for a
  // model without a tokenizer (null) or whose tokenizer lacks markers of the chat format, and what Engine throws.
  // Starts its threads; the engine's only with start().
  Service(Context& context, const Model& model, const Tokenizer* tokenizer, const EngineOptions& engine,
          ServiceOptions options);
  // Ends what still runs with Finish::kCancelled.
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  void start() { engine_->start(); }

  // On a worker. Renders, tokenises, compiles the grammar, and queues (turns.h). Throws ApiError: too long, the queue
  // is full, not possible; then `answer` is never called.
  CancelGeneration generate(Generation generation, AnswerCallback answer);

  // The prompt of a conversation as it would be run. Throws ApiError.
  EncodedChat encode(const std::vector<ChatMessage>& messages, bool thinking, int effort) const;

  // Has `work` done by a worker and answers with `shape` of what it throws (ApiError; an mdi::Error is the client's
  // fault, anything else the server's), or at once when too much is waiting. Work for a client that is gone is dropped.
  void on_worker(HttpRequest request, std::shared_ptr<HttpReply> reply, ErrorShape shape,
                 std::function<void(const HttpRequest&, const std::shared_ptr<HttpReply>&)> work);
  // Answers with an error, and counts it.
  void refuse(HttpReply& reply, const ApiError& error, ErrorShape shape);
  void count(const ApiError& error);

  // Throws ApiError(kNotFound, ..., code model_not_found) for another model's name.
  void check_model(const std::string& name) const;
  // Throws ApiError (context_length_exceeded) for a text of so many bytes that no tokens of the vocabulary make it fit:
  // before it is tokenised.
  void check_text(size_t bytes, const char* param) const;

  // The engine's, and what waits here for its turn.
  EngineMetrics metrics() const;

  // Every generation ends with Finish::kCancelled, soon; none begins any more, and no image is fetched.
  void cancel_all();
  // In work on a worker, or anywhere: does `wait`, which waits for another machine; other work has the worker's place
  // meanwhile. Throws ApiError(kBusy) where too much waits in this way already, and what `wait` throws.
  void wait_aside(const std::function<void()>& wait) const;
  // What waits aside is to end: generations have been cancelled, or the service ends.
  bool cutting() const { return cutting_; }
  // From now on not ready, and generate() refuses.
  void set_draining() { draining_ = true; }
  bool draining() const { return draining_; }
  // Why nothing can be served any more; empty: all is well.
  std::string failure() const;

  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const Model& model() const { return model_; }
  const ServiceOptions& options() const { return options_; }
  // Names what answers depend on besides the request: model, numbers, drafts, replay.
  const std::string& fingerprint() const { return fingerprint_; }
  ServiceCounters counters() const;
  ImageBudget& image_budget() const { return image_budget_; }

 private:
  struct Job;
  struct Clients;

  std::shared_ptr<const CompiledGrammar> compile(const Generation& generation);
  Request make_request(Generation& generation, AnswerSettings& settings);

  ServiceOptions options_;
  const Model& model_;
  const Tokenizer& tokenizer_;
  std::string fingerprint_;
  size_t longest_token_ = 1;  // bytes
  mutable ReplayMemory memory_;
  mutable ImageBudget image_budget_{0};
  std::unique_ptr<GrammarCompiler> grammar_;
  std::unique_ptr<Clients> clients_;
  std::atomic<bool> draining_{false}, cutting_{false};
  std::atomic<int64_t> errors_[10] = {};
  // In the order in which they may end: workers first, then what waits, then the engine, then its events.
  std::unique_ptr<EventThread> events_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Turns> turns_;
  std::unique_ptr<WorkerPool> workers_;
};

// Whom a request belongs to: the owner of the key that let it in, else the host that it came from. What a client may
// write as it likes has no say, or each of its requests could be another client's.
std::string client_of(const HttpRequest& request);

}  // namespace mdi
