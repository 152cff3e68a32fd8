// The engine's single thread: which sequences there are, and what a step does to them. Engine (engine.h) is its front.
//
// A step in order: end what is cancelled, late or stuck; plan; preempt and admit; draft; run the model; choose tokens;
// commit; publish snapshots; send events.
//
// Where all tokens of a step are chosen on the device, the next step is planned and started before they reach the host
// (engine_chain.cpp). Such a step is in flight: its commit, which does not depend on what is chosen, has been asked for
// and counted in Sequence::committed; the token that a sequence got is Sequence::awaited. A sequence that turns out to
// have ended keeps nothing of the step behind. Where the host chooses, the next step is only planned meanwhile.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "engine/draft_policy.h"
#include "engine/engine.h"
#include "engine/engine_images.h"
#include "engine/sampling.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"

namespace mdi {

class SlowMasks;

// What an engine with these options makes its runner of.
RunnerSizes runner_sizes(const Model& model, const EngineOptions& options);

class EngineCore {
 public:
  EngineCore(Context& context, const Model& model, const Tokenizer* tokenizer, const EngineOptions& options);
  ~EngineCore();

  // Takes new sequences (in ascending id) and orders, then steps. Returns whether there was anything to do.
  bool step(std::vector<std::unique_ptr<Sequence>> arrived, std::span<const EngineOrder> orders);
  void take(std::vector<std::unique_ptr<Sequence>> arrived);
  void end_all(EndReason reason, const std::string& error);

  int64_t queued() const { return queued_; }  // sequences that have not been admitted yet
  const EngineMetrics& metrics() const { return metrics_; }
  Cache& cache() { return cache_; }
  double now() const { return options_.clock(); }

 private:
  using List = std::vector<std::unique_ptr<Sequence>>;

  // A sequence's part of the step at hand.
  struct Part {
    Sequence* sequence = nullptr;
    int32_t tokens = 0;                // known ones
    int32_t drafts = 0;                // room for proposals
    std::vector<Proposal> proposals;   // behind them
    std::vector<int32_t> new_tokens;   // both
    std::vector<int32_t> sample_rows;  // empty: the part is not sampled
    std::vector<TokenMask> masks;      // of a request with a grammar: at its samples
    int32_t first_sample = 0;          // of the step's
    bool on_device = false;            // its token is chosen there
    bool waits = false;                // for a slow mask: nothing of it is kept
    bool sampled() const { return !sample_rows.empty(); }
  };

  // A step that was started.
  struct Flight {
    std::vector<Part> parts;
    StepLoad load;
    double started = 0;
    double ran = -1;  // seconds, where the backend is done when start() returns
    int32_t ticket = 0;
    bool on_device = false;  // all its tokens are chosen there, and no proposal is verified
  };

  // engine_images.cpp: requests whose images are not encoded yet
  static void insert_by_age(List& list, std::unique_ptr<Sequence> s);
  void encode_next_image();

  // engine_core.cpp: the step
  bool idle() const;  // nothing but paused requests
  void follow(std::span<const EngineOrder> orders);
  void end_due();
  void plan();
  SequenceView view_of(const Sequence& s, int32_t committed, int32_t known, bool running) const;
  PlanLimits limits() const;
  // The sequences that a plan is about, as they are or as they will be when the step `after` has run and no proposal
  // was accepted. A token that the host has not seen yet counts as known; those that leave are not among them.
  void collect(const Flight* after, std::vector<Sequence*>& order, std::vector<SequenceView>& views) const;
  void plan_ahead(Flight& flight);
  void apply_plan();
  bool reserve(Sequence& s, int32_t tokens);
  void update_gauges();
  // From here on the thread's time is that part's.
  void begin_part(HostPart part);
  void take_stages();  // of a measured step, where it is done

  // engine_run.cpp: one step of the model
  void run_step();
  bool host_chooses(const Sequence& s) const;
  Flight start_parts();  // parts_ become the flight's
  bool measure_next(bool prefill);
  void finish_on_host(Flight flight);
  std::vector<Chosen> choose_on_host(const Flight& flight, std::span<const float> logits);  // [parts]
  void side_by_side(size_t count, const std::function<void(int64_t)>& body);                // body does not throw
  // accepted: new tokens that each part keeps.
  void commit_parts(const Flight& flight, std::span<const int32_t> accepted);
  void note_done(const Flight& flight);
  // engine_masks.cpp
  static bool mask_is_slow(const Sequence& s);
  void ask_slow_mask(Sequence& s);
  void ask_grammars(Flight& flight);
  void take_slow_masks(Flight& flight);
  // engine_chain.cpp: steps whose tokens the host sees later
  std::optional<Flight> start_next();  // plans and starts the step behind the one in flight
  void take_off(Flight flight);
  void land();

  // engine_draft.cpp
  void decide_drafting(std::span<const SequenceView> views);
  void limit_drafts(std::span<SequenceView> views) const;
  void propose();

  // engine_cache.cpp: where state comes from and goes to
  bool admit(Sequence& s);
  void preempt(Sequence& s);
  void pause(RequestId id);
  void resume(RequestId id);
  void publish(Sequence& s);
  // The other samples of a request whose prompt has just been run; `row`: the logits behind it; masks: the leader's.
  void fork(Sequence& leader, std::span<const float> row, std::span<const TokenMask> masks);

  // engine_output.cpp: tokens to events
  SamplingSequence sampling_of(Sequence& s) const;
  // Adds what was chosen to the sequence and sends it. Returns how many of the tokens were taken: all, or those up to
  // the one that ends the sequence.
  int32_t emit(Sequence& s, const Chosen& chosen);
  Chosen chosen_on_device(int32_t token);
  void end(Sequence& s, EndReason reason, const std::string& error, Event event);
  // sample: that one alone; -1: all.
  void end_request(RequestId id, EndReason reason, const std::string& error, int32_t sample = -1);
  void send(RequestState& owner, Event event);
  void sweep();  // drops the sequences that have ended

  EngineOptions options_;
  const Model& model_;
  const Tokenizer* tokenizer_;
  Runner runner_;
  Cache cache_;
  CostModel step_cost_, draft_cost_;
  DraftHistory drafts_;
  bool drafting_ = false;    // in the step at hand
  bool drafts_off_ = false;  // in the step at hand, which could draft, because it would be a loss
  double threshold_ = 0;     // of survival, in the step at hand

  List running_, waiting_;                // oldest first
  List encoding_;                         // those whose images are not all encoded yet; then they wait
  std::unique_ptr<ImageEncoder> images_;  // where the model has a vision tower
  int64_t queued_ = 0;
  RequestId newest_ = 0;  // that has arrived

  std::vector<Sequence*> order_, ahead_order_;     // what the views are of
  std::vector<SequenceView> views_, ahead_views_;  // at hand; predicted for the next step
  PlanLimits ahead_limits_;
  StepPlan plan_, ahead_;
  bool have_ahead_ = false;

  std::vector<Part> parts_;  // of the step that is about to start, or of the one that the host finishes
  std::optional<Flight> flight_;
  StepChoice choice_;
  // Threads are there from the start on: one that cannot be made later would end what is being served.
  ThreadPool helpers_;                     // where the host has to do something for more than one sequence
  std::unique_ptr<SlowMasks> slow_masks_;  // where a grammar is slow
  double last_done_ = 0;                   // when a step was last seen to be done
  std::vector<StepSequence> step_sequences_;
  std::vector<CopyBlock> copies_;
  SamplingScratch scratch_;
  std::vector<RequestId> callback_cancels_;  // of requests whose on_event threw
  EngineMetrics metrics_;
  HostPart part_ = HostPart::kPlan;  // since part_began_
  double part_began_ = 0;
  StageTimes* measured_ = nullptr;  // what the step belongs to that was measured last
};

}  // namespace mdi
