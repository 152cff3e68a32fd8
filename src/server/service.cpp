#include "server/service.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>

#include "cache/prefix_key.h"
#include "core/error.h"
#include "core/printable.h"
#include "server/event_thread.h"
#include "server/turns.h"
#include "server/worker_pool.h"
#include "text/unicode.h"

namespace mdi {

namespace {

constexpr int kMaxFetches = 32;         // at the same time; one may hold 32 MiB
constexpr size_t kLargeBody = 1 << 20;  // parsing takes some ten milliseconds a MB

// The first bytes of a hash as hexadecimal digits.
std::string short_hash(std::string_view text, size_t bytes) {
  const PrefixHasher hasher(PrefixHasher::Key{});
  const ImageDigest digest = hasher.digest(std::as_bytes(std::span(text)));
  std::string hex;
  for (size_t i = 0; i < bytes; ++i) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", static_cast<unsigned>(digest[i]));
    hex += digits.data();
  }
  return hex;
}

std::string fingerprint_of(const ServiceOptions& options, const EngineOptions& engine, const ModelConfig& config) {
  const std::string text = options.model_name + '|' + std::to_string(config.vocab_size) + '|' +
                           std::to_string(config.dim) + '|' + std::to_string(config.n_layers) + '|' +
                           std::to_string(engine.draft ? 1 : 0) + '|' + std::to_string(engine.replay.rows) + '|' +
                           std::to_string(engine.max_length);
  return "fp_" + short_hash(text, 6);
}

const Tokenizer& usable(const Tokenizer* tokenizer, const ModelConfig& config) {
  if (tokenizer == nullptr) throw Error("serve", "the model's folder has no tokenizer.json, which a server needs");
  for (const char* name : {marker::kBos, marker::kEos, marker::kSystem, marker::kUser, marker::kAssistant,
                           marker::kThink, marker::kThinkEnd, marker::kDsml}) {
    if (!tokenizer->marker(name)) {
      throw Error("serve", std::string("tokenizer.json lacks the chat format's token ") + name);
    }
  }
  if (config.has_vision && tokenizer->marker(marker::kImage) != config.image_token_id) {
    throw Error("serve", std::string("the model sees images, whose place in a prompt is token ") +
                             std::to_string(config.image_token_id) + ": expected it in tokenizer.json as " +
                             marker::kImage + ", found " +
                             (tokenizer->marker(marker::kImage) ? "another token of that name" : "none of that name"));
  }
  return *tokenizer;
}

// The part of a request that most of a conversation's bytes are of.
const char* longest_part(const std::vector<ChatMessage>& messages) {
  size_t schema = 0, tools = 0, text = 0;
  for (const ChatMessage& message : messages) {
    schema += message.response_format.size();
    for (const std::string& tool : message.tools) tools += tool.size();
    for (const ToolCall& call : message.tool_calls) text += call.arguments.size();
    text += message.reasoning.size();
    for (const ContentPart& part : message.content) text += part.text.size();
  }
  return text >= std::max(schema, tools) ? "messages" : tools >= schema ? "tools" : "response_format";
}

// One that a client can write into `model`, and that a line of the log can hold.
bool is_model_name(const std::string& name) {
  return !name.empty() && name.size() <= 1024 && valid_utf8_prefix(name) == name.size() &&
         std::none_of(name.begin(), name.end(), [](char c) { return (c >= 0 && c < ' ') || c == 0x7f; });
}

ServiceOptions checked(ServiceOptions o) {
  const auto refuse = [](const char* what) { throw Error("serve", what); };
  if (!is_model_name(o.model_name)) {
    throw Error("serve", "model name: expected 1 to 1024 bytes of UTF-8 without control characters, found " +
                             (o.model_name.empty() ? "none" : printable(o.model_name, 60)));
  }
  if (o.effort < 1 || o.effort > 100) refuse("effort: expected 1 to 100");
  if (o.workers < 1 || o.workers > 256) refuse("workers: expected 1 to 256");
  if (o.max_jobs < 1) refuse("jobs that wait: expected 1 or more");
  if (!(o.timeout >= 0 && o.timeout <= RequestLimits{}.max_deadline)) refuse("timeout: expected 0 (none) to a day");
  if (!(o.keep_alive >= 0 && o.keep_alive <= 3600)) refuse("keep alive: expected 0 (never) to 3600 seconds");
  if (o.max_tokens < 0) refuse("max tokens: expected 0 (no limit but the context's) or more");
  check_sampling({.temperature = o.temperature, .top_p = o.top_p}, "serve");
  return o;
}

// The queue is the service's.
EngineOptions without_queue(EngineOptions o) {
  o.max_queue = INT32_MAX;
  return o;
}

}  // namespace

// How many generations each client has.
struct Service::Clients {
  std::mutex mutex;
  std::unordered_map<std::string, size_t> running;
  int64_t all = 0;

  bool enter(const std::string& client, size_t most) {
    const std::lock_guard lock(mutex);
    size_t& own = running[client];
    if (most > 0 && own >= most) return false;
    ++own;
    ++all;
    return true;
  }
  void leave(const std::string& client) {
    const std::lock_guard lock(mutex);
    const auto found = running.find(client);
    if (--found->second == 0) running.erase(found);
    --all;
  }
};

Service::Service(Context& context, const Model& model, const Tokenizer* tokenizer, const EngineOptions& engine,
                 ServiceOptions options)
    : options_(checked(std::move(options))),
      model_(model),
      tokenizer_(usable(tokenizer, model.config())),
      fingerprint_(fingerprint_of(options_, engine, model.config())),
      memory_(options_.memory_bytes),
      grammar_(std::make_unique<GrammarCompiler>(tokenizer_, model.config().vocab_size, model.config().eos_token_id,
                                                 options_.grammar)),
      clients_(std::make_unique<Clients>()),
      events_(std::make_unique<EventThread>(options_.keep_alive)),
      engine_(std::make_unique<Engine>(context, model, tokenizer, without_queue(engine))),
      turns_(std::make_unique<Turns>(*engine_, engine.max_queue)),
      workers_(std::make_unique<WorkerPool>(options_.workers, options_.max_jobs,
                                            options_.allow_remote_images ? kMaxFetches : 0)) {
  for (int32_t id = 0; id < tokenizer_.size(); ++id)
    longest_token_ = std::max(longest_token_, tokenizer_.bytes(id).size());
}

Service::~Service() {
  draining_ = cutting_ = true;
  grammar_->stop();
}

std::string Service::failure() const { return engine_->failure(); }

void Service::check_model(const std::string& name) const {
  if (name == options_.model_name) return;
  throw ApiError(
      ApiErrorKind::kNotFound,
      "The model '" + printable(name, 100) + "' does not exist; this server has '" + options_.model_name + "'.",
      "model", "model_not_found");
}

void Service::check_text(size_t bytes, const char* param) const {
  const auto context = static_cast<size_t>(engine_->options().max_length);
  if (bytes / longest_token_ <= context) return;
  throw ApiError(ApiErrorKind::kInvalid,
                 "This model's maximum context length is " + std::to_string(context) + " tokens; the " + param +
                     " of " + std::to_string(bytes) + " bytes is more than that in any case.",
                 param, "context_length_exceeded");
}

EncodedChat Service::encode(const std::vector<ChatMessage>& messages, bool thinking, int effort) const {
  size_t bytes = 0;
  for (const ChatMessage& message : messages) {
    bytes += message.response_format.size();  // reasoning may be dropped
    for (const std::string& tool : message.tools) bytes += tool.size();
    for (const ToolCall& call : message.tool_calls) bytes += call.arguments.size();
    for (const ContentPart& part : message.content) {
      bytes += part.kind == ContentPart::Kind::kText ? part.text.size() : 0;
      for (const ContentPart& inner : part.parts)
        bytes += inner.kind == ContentPart::Kind::kText ? inner.text.size() : 0;
    }
  }
  check_text(bytes, longest_part(messages));
  return encode_chat(tokenizer_, messages, {.thinking = thinking, .effort = effort, .memory = &memory_});
}

std::shared_ptr<const CompiledGrammar> Service::compile(const Generation& g) {
  try {
    return grammar_->compile(g.grammar, g.client);
  } catch (const GrammarBusy& busy) {
    throw ApiError(ApiErrorKind::kUnavailable, busy.what(), {}, "compiler_busy");
  }
}

// What the engine is asked for; `settings` gets what the answer needs to know.
Request Service::make_request(Generation& g, AnswerSettings& settings) {
  Request r;
  // First: what is too large for a grammar is not tokenised.
  const auto grammar = constrains(g.grammar) ? compile(g) : nullptr;
  settings.chat = !g.messages.empty();
  settings.n = g.n;
  settings.logprobs = g.logprobs.has_value();
  if (settings.chat) {
    EncodedChat encoded = encode(g.messages, g.thinking, g.effort);
    settings.reasoning = encoded.reasoning;
    settings.place = encoded.place;
    settings.stop = g.stop;
    place_images(model_.config(), std::move(encoded), g.images, r);
  } else {
    r.prompt = std::move(g.prompt);
  }
  const int64_t room = engine_->options().max_length - static_cast<int64_t>(r.prompt.size());
  const int64_t wanted = g.max_tokens ? *g.max_tokens : std::min<int64_t>(room, options_.max_tokens);
  const int64_t max_tokens = g.max_tokens || options_.max_tokens > 0 ? wanted : room;
  if (room < 1 || max_tokens > room) {
    std::string message = "This model's maximum context length is " + std::to_string(engine_->options().max_length) +
                          " tokens. However, you requested " +
                          std::to_string(r.prompt.size() + (g.max_tokens ? static_cast<size_t>(wanted) : 0)) +
                          " tokens (" + std::to_string(r.prompt.size()) + " in the " +
                          (settings.chat ? "messages" : "prompt");
    message += g.max_tokens ? ", " + std::to_string(wanted) + " in the completion)." : ").";
    throw ApiError(ApiErrorKind::kInvalid, message,
                   room < 1 ? (settings.chat ? longest_part(g.messages) : "prompt") : g.max_tokens_name,
                   "context_length_exceeded");
  }
  r.salt = options_.separate_clients ? short_hash(g.client, 16) + g.salt : g.salt;
  r.sampling = g.sampling;
  r.max_tokens = static_cast<int32_t>(max_tokens);
  r.n = g.n;
  r.logprobs = g.logprobs;
  r.draft = g.draft;
  // Behind a grammar's end nothing can come.
  if (!g.ignore_eos || grammar) r.stop_ids = {model_.config().eos_token_id};
  // Where all text is content the engine may end it at once, and keeps the state of the answer's end.
  const bool tools = g.grammar.tool_choice != GrammarSpec::ToolChoice::kFree &&
                     g.grammar.tool_choice != GrammarSpec::ToolChoice::kNone;
  if (!settings.chat || (!settings.reasoning && !tools)) r.stop = g.stop;
  r.text = !settings.chat;
  r.deadline = options_.timeout;
  r.client = g.client;
  if (grammar) {
    r.allowed = make_mask(grammar, settings.reasoning, g.ignore_eos);
    r.slow_masks = [grammar] { return masks_are_slow(*grammar); };
  }
  return r;
}

CancelGeneration Service::generate(Generation generation, AnswerCallback answer) {
  const auto ended = [this] {
    const std::string why = failure();
    return ApiError(ApiErrorKind::kUnavailable,
                    why.empty() ? "The server is shutting down." : "The engine has failed: " + why);
  };
  if (draining_ || !failure().empty()) throw ended();
  const std::string client = generation.client;
  const bool bounded = !generation.further;
  if (!clients_->enter(client, bounded ? options_.max_running_per_client : 0)) {
    throw ApiError(ApiErrorKind::kBusy,
                   "You have " + std::to_string(options_.max_running_per_client) +
                       " requests running or waiting, which is this server's limit for one client; try again later.",
                   {}, "rate_limit_exceeded");
  }
  std::shared_ptr<Running> running;
  try {
    AnswerSettings settings;
    Request request = make_request(generation, settings);
    engine_->check(request);
    running = std::make_shared<Running>(Answer(tokenizer_, &memory_, std::move(settings)), std::move(answer),
                                        [this, client] { clients_->leave(client); });
    events_->watch(running);
    std::vector<std::shared_ptr<void>> leases;  // end with the request, whose images they are for
    for (RequestImage& image : generation.images) leases.push_back(std::move(image.lease));
    request.on_event = [events = events_.get(), running, leases = std::move(leases)](const Event& event) {
      events->push(running, event);
    };
    const Turns::Add add = turns_->add(client, std::move(request), running, bounded);
    if (add == Turns::Add::kFull) {
      throw ApiError(ApiErrorKind::kBusy, "The server's queue is full; try again later.", {}, "queue_full");
    }
    if (add == Turns::Add::kClientFull) {
      throw ApiError(ApiErrorKind::kBusy,
                     "The rest of the server's queue is for clients of which nothing waits; try again later.", {},
                     "queue_full");
    }
  } catch (const Error&) {
    clients_->leave(client);
    if (!failure().empty()) throw ended();
    throw;
  } catch (...) {
    clients_->leave(client);
    throw;
  }
  return [running] { running->cancel(); };
}

EngineMetrics Service::metrics() const {
  EngineMetrics metrics = engine_->metrics();
  turns_->add_to(metrics);
  return metrics;
}

void Service::cancel_all() {
  cutting_ = true;
  grammar_->stop();
  turns_->cancel_all();
}

void Service::wait_aside(const std::function<void()>& wait) const {
  if (workers_->step_aside(wait)) return;
  throw ApiError(ApiErrorKind::kBusy, "Too many images are being fetched; try again later.", {}, "queue_full");
}

void Service::count(const ApiError& error) { ++errors_[static_cast<size_t>(error.kind())]; }

void Service::refuse(HttpReply& reply, const ApiError& error, ErrorShape shape) {
  if (reply.gone()) return;  // a hang-up is no error
  count(error);
  HttpAnswer answer = shape(error);
  reply.send(answer.status, std::move(answer.content_type), std::move(answer.body), std::move(answer.headers));
}

void Service::on_worker(HttpRequest request, std::shared_ptr<HttpReply> reply, ErrorShape shape,
                        std::function<void(const HttpRequest&, const std::shared_ptr<HttpReply>&)> work) {
  const std::string client = client_of(request);
  struct Held {
    HttpRequest request;
    std::shared_ptr<HttpReply> reply;
  };
  const auto held = std::make_shared<const Held>(Held{std::move(request), std::move(reply)});
  HttpReply& to = *held->reply;
  auto job = [this, shape, held, &to, work = std::move(work)] {
    if (to.gone()) return;
    try {
      work(held->request, held->reply);
    } catch (const ApiError& error) {
      refuse(to, error, shape);
    } catch (const Error& error) {
      refuse(to, invalid_request(error), shape);
    } catch (const std::bad_alloc&) {
      refuse(to, {ApiErrorKind::kInternal, "The server is out of memory."}, shape);
    } catch (const std::exception& error) {
      refuse(to, {ApiErrorKind::kInternal, std::string("Internal error: ") + error.what()}, shape);
    }
  };
  const bool large = held->request.body.size() > kLargeBody;
  const WorkerPool::Post post = workers_->post(client, std::move(job), large);
  if (post == WorkerPool::Post::kClientFull) {
    refuse(to, {ApiErrorKind::kBusy, "Too many of your requests are waiting; try again later.", {}, "queue_full"},
           shape);
  } else if (post == WorkerPool::Post::kFull) {
    refuse(to, {ApiErrorKind::kUnavailable, "Too many requests are waiting; try again later.", {}, "queue_full"},
           shape);
  }
}

ServiceCounters Service::counters() const {
  const WorkerCounters w = workers_->counters();
  ServiceCounters c;
  c.jobs_waiting = w.waiting;
  c.jobs_running = w.running;
  c.jobs_done = w.done;
  c.jobs_refused = w.refused;
  {
    const std::lock_guard lock(clients_->mutex);
    c.generations = clients_->all;
  }
  for (size_t i = 0; i < std::size(c.errors); ++i) c.errors[i] = errors_[i];
  c.memory_bytes = static_cast<int64_t>(memory_.bytes());
  c.grammar = grammar_->counters();
  return c;
}

std::string client_of(const HttpRequest& request) {
  return request.client.empty() ? std::string(peer_host(request.peer)) : request.client;
}

}  // namespace mdi
