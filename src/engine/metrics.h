// What the engine counts. Plain numbers: the server turns them into its text format, the bench into tables.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/stages.h"

namespace mdi {

// Counts by size: bucket i holds values up to kFirst * 2^(i/2) seconds, the last one everything above.
struct Histogram {
  static constexpr int kBuckets = 48;
  static constexpr double kFirst = 1e-4;

  std::array<int64_t, kBuckets> counts = {};
  int64_t total = 0;
  double sum = 0, largest = 0;

  static double upper_bound(int bucket);
  void add(double seconds);
  // The upper bound of the bucket in which the share `q` (0..1) of all values is reached; 0 when there are none.
  double quantile(double q) const;
};

// Where the engine's thread spends a step; with a backend that runs ahead, the device works meanwhile.
enum class HostPart : uint8_t {
  kPlan,     // what ends, what is planned, who is admitted and preempted
  kImages,   // the vision tower
  kDrafts,   // proposals of the draft layers, which a step verifies
  kLaunch,   // starting the model's step; on the CPU the step itself
  kMasks,    // of requests with grammars
  kWait,     // for the device
  kChoice,   // tokens: chosen where the host does, turned into text and sent
  kPublish,  // commit, snapshots and forks
  kCount
};

inline constexpr size_t kHostParts = static_cast<size_t>(HostPart::kCount);

const char* host_part_name(HostPart part);  // "plan", ...

// Of the steps that were measured by stage, one in EngineOptions::measure_every.
struct StageTimes {
  int64_t started = 0;            // steps of this kind, measured or not
  int64_t steps = 0;              // measured
  PerStage<double> seconds = {};  // of those; forward and commit
};

struct EngineMetrics {
  // Requests
  int64_t submitted = 0, refused_full = 0, refused_invalid = 0;
  int64_t ended_stop = 0, ended_length = 0, ended_cancelled = 0, ended_deadline = 0, ended_stalled = 0, ended_error = 0;
  int64_t ended_invalid = 0;
  int64_t late_cancels = 0;     // for requests that are not there (any more): ignored
  int64_t callback_errors = 0;  // event callbacks that threw; their request was cancelled
  // Now
  int64_t waiting = 0, running = 0, blocks_free = 0, blocks_idle = 0, blocks_total = 0, slots_free = 0, slots_total = 0;
  // Steps
  int64_t steps = 0, rows = 0, prefill_tokens = 0, generated_tokens = 0, preemptions = 0;
  int64_t steps_recorded = 0;                     // that ran what was recorded at start (step_recorder.h)
  int64_t steps_chained = 0;                      // started before the host had seen the tokens of the step before
  int64_t tokens_on_device = 0;                   // of generated_tokens, chosen on the device
  int64_t plans_ahead = 0, plans_ahead_used = 0;  // made while the step before ran; and still right after it
  Histogram step_seconds, plan_seconds, sample_seconds;
  StageTimes prefill_stages, decode_stages;  // of steps with prompt tokens; of others
  std::array<double, kHostParts> host_seconds = {};
  double step_started = 0;  // on the engine's clock: a health check sees a step that hangs
  // Prefix cache
  int64_t lookups = 0, hits = 0, hit_tokens = 0, prompt_tokens = 0, snapshots = 0, snapshots_evicted = 0;
  // Drafting: how often the proposal at each place of a block was verified, and how often accepted.
  std::vector<int64_t> proposed, accepted;
  int64_t draft_calls = 0, steps_drafts_off = 0;  // steps in which drafting would have been a loss
  // Images
  int64_t images_encoded = 0, images_kept = 0;  // by the vision tower; found among the latest rows
  Histogram image_seconds;
  // Requests' times
  Histogram first_token_seconds, token_seconds;
};

// One line a value, for a person.
std::string describe(const EngineMetrics& metrics);

}  // namespace mdi
