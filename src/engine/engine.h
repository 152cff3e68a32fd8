// Many requests at once on one model: submit and cancel from any thread, one iteration a step() call, events as tokens
// come.
//
// submit() checks a request, answers at once when the queue is full, and returns its id. step() plans (scheduler.h),
// runs one step of the model, samples and sends events; start() runs step() on a thread of the engine's own. Tests and
// benches call step() by hand.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/metrics.h"
#include "engine/request.h"
#include "engine/runner.h"
#include "text/tokenizer.h"

namespace mdi {

struct EngineOptions {
  int32_t slots = 16;         // sequences that run at once
  int64_t max_length = 4096;  // of a sequence, prompt and answer
  int32_t blocks = 0;         // cache blocks of 128 tokens; 0: as many as `slots` sequences of max_length take
  int32_t snapshots = 64;     // host buffers of the prefix cache; 0: no prefix cache
  int32_t max_rows = 512;     // new tokens of a step
  int32_t max_queue = 256;    // requests that wait to be admitted for the first time
  double tpot_target = 0;     // seconds between the tokens of a decoding sequence; 0: no limit
  bool draft = true;          // use the draft layers where the model has some and it pays
  int32_t draft_block = 0;    // 0 or what the draft layers were trained for: nothing else works
  bool draft_always = false;  // also where it is a loss: for tests and benches
  ReplaySettings replay;
  double stall_limit = 120;  // seconds without progress after which a running request ends; 0: never
  int32_t snapshot_every_blocks = 32;
  int32_t snapshot_min_tokens =
      64;                       // a sequence that has added fewer tokens to what was cached is not worth a snapshot
  int32_t preempt_every = 0;    // steps after which the youngest is preempted without need: for tests; 0: never
  bool plan_ahead = true;       // plan the next step while one runs
  bool device_sampling = true;  // where the host is not needed, tokens are chosen on the device and read there by the
                                // next step, which starts before the host has seen them: same tokens, sooner
  bool record_steps = true;     // where the backend keeps what is recorded (step_recorder.h): same tokens, sooner
  // Of the steps with prompt tokens, and of the others, one in so many is measured by stage; 0: none. A measured decode
  // step is launched instead of run from a record, which costs it a few per cent with CUDA: under a thousandth of all.
  int32_t measure_every = 64;
  std::function<double()> clock;  // seconds; empty: a steady clock
};

class EngineCore;  // the engine's single thread (engine_core.h)
struct Sequence;

// What a request that was submitted is to do, besides running.
struct EngineOrder {
  enum class Kind : uint8_t { kCancel, kPause, kResume };
  Kind kind = Kind::kCancel;
  RequestId request = 0;
  int32_t sample = -1;  // kCancel: this one; -1: all
};

class Engine {
 public:
  // Allocates all that serving takes. context, model and tokenizer (null: no text and stop strings) outlive the engine.
  // Throws mdi::Error for options that contradict each other or the model.
  Engine(Context& context, const Model& model, const Tokenizer* tokenizer, EngineOptions options);
  // Ends what still runs with EndReason::kCancelled.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // From any thread. nullopt: the queue is full, try later. Events may come before the id is returned. Throws
  // mdi::Error for a request that cannot be served, and after a step has failed.
  std::optional<RequestId> submit(Request request);
  // What submit() would throw for this request; from any thread.
  void check(const Request& request);

  // From any thread, also from on_event. The request gets its last event before the next step runs the model. A request
  // that has ended, or never was, is ignored and counted.
  void cancel(RequestId id);
  // One of its samples; the others go on.
  void cancel_sample(RequestId id, int32_t sample);

  // From any thread. A paused request gives up slots and blocks before the next step and takes none; its tokens are the
  // same in the end, because its state is kept as a snapshot or recomputed. Resumed, it waits behind all that have been
  // submitted by then. Its deadline goes on. One that has ended is left alone.
  void pause(RequestId id);
  void resume(RequestId id);

  // One iteration; not while start() is in force. Returns whether there was anything to do. Throws what the model or a
  // backend throws; every request has then ended with EndReason::kError, and the engine takes no more.
  bool step();
  // Steps until nothing is left.
  void run();

  void start();
  void stop();  // ends the thread after its current step; requests stay

  EngineMetrics metrics() const;
  // Why the engine takes no more requests: what a step has thrown. Empty: all is well.
  std::string failure() const;
  const EngineOptions& options() const { return options_; }
  const PrefixHasher& hasher() const;  // for ImageIdentity::digest

 private:
  void thread_loop();
  void order(const EngineOrder& order);

  EngineOptions options_;
  const Tokenizer* tokenizer_;
  RequestLimits limits_;
  const ModelConfig& config_;
  std::unique_ptr<EngineCore> core_;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  std::vector<std::unique_ptr<Sequence>> inbox_;
  std::vector<EngineOrder> orders_;
  RequestId next_id_ = 1;
  int64_t queued_ = 0;  // submitted and not yet admitted
  int64_t refused_full_ = 0, refused_invalid_ = 0;
  std::string failed_;
  bool stopping_ = false;
  EngineMetrics metrics_;  // after the last step
  std::thread thread_;
};

}  // namespace mdi
