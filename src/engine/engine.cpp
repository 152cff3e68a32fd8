#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "core/error.h"
#include "engine/engine_core.h"

namespace mdi {

namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void check_least(const char* name, int64_t value, int64_t least) {
  if (value >= least) return;
  throw Error("engine",
              std::string(name) + ": expected " + std::to_string(least) + " or more, found " + std::to_string(value));
}

// Options with what follows from them filled in.
EngineOptions complete(EngineOptions o, const Model& model) {
  const ModelConfig& c = model.config();
  check_least("slots", o.slots, 1);
  check_least("max_length", o.max_length, 2);
  check_least("max_queue", o.max_queue, 0);
  check_least("snapshots", o.snapshots, 0);
  check_least("snapshot_every_blocks", o.snapshot_every_blocks, 1);
  check_least("max_rows (at least a row for each slot)", o.max_rows, o.slots);
  if (o.max_length > c.max_position_embeddings) {
    throw Error("engine", "max_length: expected at most " + std::to_string(c.max_position_embeddings) +
                              " (max_position_embeddings), found " + std::to_string(o.max_length));
  }
  if (o.blocks == 0) o.blocks = static_cast<int32_t>(o.slots * blocks_for(o.max_length) + 1);
  // One more for the copy of a block that the prefix cache holds too.
  check_least("blocks (those of one sequence of max_length, and one)", o.blocks, blocks_for(o.max_length) + 1);
  if (!(o.tpot_target >= 0)) throw Error("engine", "tpot_target: expected 0 (no limit) or more seconds");
  check_least("measure_every", o.measure_every, 0);
  check_least("replay rows", o.replay.rows, 0);
  if (o.replay.rows > 0 && last_source_layer(c) < 0) {
    throw Error("engine",
                "replay: the model has no KV source layers, found " + std::to_string(o.replay.rows) + " rows");
  }
  if (o.draft_block != 0 && o.draft_block != c.dspark_block_size) {
    throw Error("engine", "draft_block: the draft layers were trained for " + std::to_string(c.dspark_block_size) +
                              " tokens, found " + std::to_string(o.draft_block));
  }
  if (o.draft && model.draft_stages() > 0 && c.dspark_block_size + 1 > kMaxDraftRows) {
    throw Error("engine", "draft blocks: expected at most " + std::to_string(kMaxDraftRows - 1) + " tokens, found " +
                              std::to_string(c.dspark_block_size));
  }
  if (!o.clock) o.clock = steady_seconds;
  return o;
}

}  // namespace

Engine::Engine(Context& context, const Model& model, const Tokenizer* tokenizer, EngineOptions options)
    : options_(complete(std::move(options), model)),
      tokenizer_(tokenizer),
      limits_{.max_length = options_.max_length},
      config_(model.config()),
      core_(std::make_unique<EngineCore>(context, model, tokenizer, options_)),
      metrics_(core_->metrics()) {}

Engine::~Engine() {
  stop();
  std::vector<std::unique_ptr<Sequence>> arrived = std::exchange(inbox_, {});
  core_->take(std::move(arrived));
  core_->end_all(EndReason::kCancelled, {});
}

void Engine::check(const Request& request) {
  try {
    check_request(request, limits_, config_, tokenizer_ != nullptr);
  } catch (const Error&) {
    const std::lock_guard lock(mutex_);
    ++refused_invalid_;
    throw;
  }
}

std::optional<RequestId> Engine::submit(Request request) {
  check(request);
  auto owner = std::make_shared<RequestState>();
  owner->open = request.n;
  owner->forked = request.n == 1;
  owner->submitted = options_.clock() - request.waited;
  if (request.deadline > 0) owner->deadline = owner->submitted + request.deadline;
  owner->request = std::move(request);
  const Request& r = owner->request;
  {
    // Before the work on a long prompt: a full queue answers at once.
    const std::lock_guard lock(mutex_);
    if (!failed_.empty()) throw Error("engine", failed_);
    if (queued_ >= options_.max_queue) {
      ++refused_full_;
      return std::nullopt;
    }
    ++queued_;
    owner->id = next_id_++;
    owner->turn = 2 * owner->id;
  }
  std::unique_ptr<Sequence> s;
  try {
    PrefixKey key(core_->cache().hasher, r.salt);
    for (const ImageIdentity& image : r.image_identities) {
      key.add_image({.start = image.start, .count = image.count, .digest = image.digest});
    }
    key.append(r.prompt);
    s = std::make_unique<Sequence>(owner, 0, std::move(key));
    s->tokens = r.prompt;
    if (has_penalties(r.sampling)) s->history.add_prompt(r.prompt);
    if (r.text || !r.stop.empty()) s->detokenizer.emplace(*tokenizer_, true);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    --queued_;
    throw;
  }
  const RequestId id = owner->id;
  {
    const std::lock_guard lock(mutex_);
    if (!failed_.empty()) {  // since the first look: nobody takes from the inbox any more
      --queued_;
      throw Error("engine", failed_);
    }
    const auto behind =
        std::find_if(inbox_.begin(), inbox_.end(), [&s](const auto& entry) { return s->older_than(*entry); });
    inbox_.insert(behind, std::move(s));
  }
  wake_.notify_one();
  return id;
}

void Engine::order(const EngineOrder& order) {
  {
    const std::lock_guard lock(mutex_);
    orders_.push_back(order);
  }
  wake_.notify_one();
}

void Engine::cancel(RequestId id) { order({EngineOrder::Kind::kCancel, id}); }
void Engine::cancel_sample(RequestId id, int32_t sample) { order({EngineOrder::Kind::kCancel, id, sample}); }
void Engine::pause(RequestId id) { order({EngineOrder::Kind::kPause, id}); }
void Engine::resume(RequestId id) { order({EngineOrder::Kind::kResume, id}); }

bool Engine::step() {
  std::vector<std::unique_ptr<Sequence>> arrived;
  std::vector<EngineOrder> orders;
  {
    const std::lock_guard lock(mutex_);
    if (!failed_.empty()) throw Error("engine", failed_);
    arrived.swap(inbox_);
    orders.swap(orders_);
  }
  const int64_t before = core_->queued() + static_cast<int64_t>(arrived.size());
  bool worked = false;
  try {
    worked = core_->step(std::move(arrived), orders);
  } catch (const std::exception& e) {
    {
      const std::lock_guard lock(mutex_);
      failed_ = e.what();
      core_->take(std::exchange(inbox_, {}));
    }
    core_->end_all(EndReason::kError, e.what());
    const std::lock_guard lock(mutex_);
    metrics_ = core_->metrics();
    throw;
  }
  const std::lock_guard lock(mutex_);
  // What was submitted meanwhile stays counted.
  queued_ += core_->queued() - before;
  metrics_ = core_->metrics();
  return worked;
}

void Engine::run() {
  while (step()) {
  }
}

void Engine::start() {
  if (thread_.joinable()) return;
  stopping_ = false;
  thread_ = std::thread([this] { thread_loop(); });
}

void Engine::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Engine::thread_loop() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (stopping_) return;
    }
    bool worked = false;
    try {
      worked = step();
    } catch (const std::exception&) {
      return;  // failed_ says what; submit() throws it
    }
    if (worked) continue;
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return stopping_ || !inbox_.empty() || !orders_.empty(); });
  }
}

EngineMetrics Engine::metrics() const {
  const std::lock_guard lock(mutex_);
  EngineMetrics metrics = metrics_;
  metrics.refused_full = refused_full_;
  metrics.refused_invalid = refused_invalid_;
  metrics.waiting += static_cast<int64_t>(inbox_.size());
  return metrics;
}

std::string Engine::failure() const {
  const std::lock_guard lock(mutex_);
  return failed_;
}

const PrefixHasher& Engine::hasher() const { return core_->cache().hasher; }

}  // namespace mdi
