#include "engine/runner.h"

#include <algorithm>
#include <numeric>

#include "engine/stage_ops.h"

namespace mdi {

namespace {

int32_t block_rows(const Model& model, const RunnerSizes& sizes) {
  return 1 + (sizes.drafts ? model.config().dspark_block_size : 0);
}

std::vector<StepShape> shapes_of(const Model& model, const RunnerSizes& sizes) {
  return recorded_shapes(sizes.slots, block_rows(model, sizes), std::min(sizes.max_rows, sizes.max_samples),
                         static_cast<int32_t>(blocks_for(sizes.max_length)));
}

// Of a step's block tables: what sequences need and, where steps are recorded, what padding needs.
int32_t max_blocks(const Model& model, const RunnerSizes& sizes, bool records) {
  auto blocks = static_cast<int32_t>(blocks_for(sizes.max_length));
  if (!records) return blocks;
  for (const StepShape& shape : shapes_of(model, sizes)) blocks = std::max(blocks, shape.max_blocks);
  return std::max(blocks, static_cast<int32_t>(blocks_for(sizes.max_rows)));
}

// The row of the upper layers' view that is this row of the step.
int32_t kept_row_of(const Step& step, int32_t row) {
  const auto s = static_cast<size_t>(step.seq_of_row[static_cast<size_t>(row)]);
  const int32_t before = std::accumulate(step.seq_kept.begin(), step.seq_kept.begin() + static_cast<ptrdiff_t>(s), 0);
  return before + row - (step.seq_row[s] + step.seq_count[s] - step.seq_kept[s]);
}

int64_t choice_bytes(const RunnerSizes& sizes) {
  return int64_t{sizes.max_samples} * static_cast<int64_t>(sizeof(SampleRow)) +
         int64_t{sizes.slots} * 3 * static_cast<int64_t>(sizeof(int32_t));
}

// A layer has at most 14 stages one after the other, and two or three more for each further part of index scores and of
// expert rows, which long prefills alone have: 10 sources with 4 parts each at 4,096 rows behind 131,072 tokens.
size_t marks_of(const Model& model) { return 64 * static_cast<size_t>(model.config().n_layers + 1); }

}  // namespace

size_t recorded_count(const Model& model, const RunnerSizes& sizes) { return shapes_of(model, sizes).size(); }

Runner::Runner(Context& context, const Model& model, const RunnerSizes& sizes)
    : context_(context),
      model_(model),
      sizes_(sizes),
      records_(sizes.record && context.ops->record != nullptr),
      // One slot, block and sequence more for the padding, of the ids behind all others.
      state_(make_state(context, model, sizes.slots + (records_ ? 1 : 0), sizes.blocks + (records_ ? 1 : 0))),
      buffers_(context, model, sizes.max_rows, sizes.max_samples, sizes.slots + (records_ ? 1 : 0),
               max_blocks(model, sizes, records_)),
      snapshots_(context, state_, sizes.snapshots) {
  const int32_t block = model.config().dspark_block_size;
  // A draft call runs and samples whole blocks in the step's buffers.
  const int32_t drafting =
      sizes.drafts && block > 0 ? std::min({sizes.slots, sizes.max_rows / block, sizes.max_samples / block}) : 0;
  if (drafting > 0) draft_buffers_ = std::make_unique<DraftBuffers>(context, model, drafting);
  const int64_t values = int64_t{sizes.max_samples} * model.config().vocab_size;
  logits_ = static_cast<float*>(context.ops->allocate_host(context, values * static_cast<int64_t>(sizeof(float))));
  choice_ = DeviceBuffer(context, choice_bytes(sizes_));
  if (sizes.measure) clock_ = std::make_unique<StageClock>(context, marks_of(model));
  for (Turn& turn : turns_) {
    const int64_t chosen = int64_t{sizes.max_samples} * static_cast<int64_t>(sizeof(int32_t));
    turn.device_chosen = DeviceBuffer(context, chosen);
    turn.choice = static_cast<std::byte*>(context.ops->allocate_host(context, choice_bytes(sizes_)));
    turn.chosen = static_cast<int32_t*>(context.ops->allocate_host(context, chosen));
    if (runs_ahead()) turn.mark = context.ops->make_mark(context);
  }
  if (records_ && sizes.warm) warm();
}

// Everything that a step may still have to set up happens now: the largest step, then one of each shape.
void Runner::warm() {
  Step largest;
  const StepShape all{.sequences = 1, .rows = sizes_.max_rows, .max_blocks = buffers_.max_blocks};
  pad_step({}, all, sizes_.slots, sizes_.blocks, largest);
  largest.sample_rows.resize(static_cast<size_t>(std::min(sizes_.max_rows, sizes_.max_samples)));
  forward(context_, model_, state_, largest, buffers_);
  recorder_ = std::make_unique<StepRecorder>(context_, model_, state_, buffers_, shapes_of(model_, sizes_),
                                             block_rows(model_, sizes_), sizes_.slots, sizes_.blocks);
}

Runner::~Runner() {
  for (Turn& turn : turns_) {
    if (turn.mark != nullptr) context_.ops->release_mark(context_, turn.mark);
    context_.ops->release_host(context_, turn.choice);
    context_.ops->release_host(context_, turn.chosen);
  }
  context_.ops->release_host(context_, logits_);
}

void Runner::copy_blocks(std::span<const CopyBlock> copies) {
  for (const CopyBlock& copy : copies) copy_block(context_, state_, copy.from, copy.to);
}

int32_t Runner::start(std::span<const StepSequence> sequences, ReplayForm form, const StepChoice& choice,
                      bool measured) {
  turn_ ^= 1;
  step_ = make_step(model_, state_, sequences, form);
  measured_ = measured && can_measure();
  std::optional<StageScope> scope;
  if (measured_) {
    scope.emplace(context_, *clock_);
    clock_->start(Stage::kOther, step_.rows());
  }
  const auto place = [&] { place_tokens(choice); };
  recorded_ = !measured_ && recorder_ && recorder_->forward(step_, place);
  if (recorded_) {
    ++recorded_steps_;
  } else {
    upload_step(context_, step_, buffers_);
    place();
    run_forward(context_, model_, state_, step_, buffers_);
  }
  choose(choice);
  if (measured_) clock_->pause();
  return turn_;
}

// Where the step has to read tokens that only the device knows, in both of its views. Sends the rows' parameters along.
void Runner::place_tokens(const StepChoice& choice) {
  Turn& turn = turns_[static_cast<size_t>(turn_)];
  const size_t count = choice.place.size();
  if (choice.rows.empty() && count == 0) return;
  auto* params = reinterpret_cast<SampleRow*>(turn.choice);
  std::copy(choice.rows.begin(), choice.rows.end(), params);
  auto* indices = reinterpret_cast<int32_t*>(params + choice.rows.size());
  std::copy(choice.place.begin(), choice.place.end(), indices);
  std::copy(choice.source.begin(), choice.source.end(), indices + count);
  size_t ints = 2 * count;
  if (buffers_.drops) {
    for (const int32_t row : choice.place) indices[ints++] = kept_row_of(step_, row);
  }
  const auto bytes = static_cast<int64_t>(choice.rows.size() * sizeof(SampleRow) + ints * sizeof(int32_t));
  context_.ops->copy(context_, choice_.as<std::byte>(), turn.choice, bytes);
  if (count == 0) return;
  const auto* device = reinterpret_cast<const int32_t*>(choice_.as<SampleRow>() + choice.rows.size());
  PlaceTokensArgs args{.count = static_cast<int32_t>(count),
                       .place = device,
                       .source = device + count,
                       .chosen = turns_[static_cast<size_t>(turn_ ^ 1)].device_chosen.as<int32_t>(),
                       .token = const_cast<int32_t*>(buffers_.view.token)};
  context_.ops->place_tokens(context_, args);
  if (!buffers_.drops) return;
  args.place = device + 2 * count;
  args.token = const_cast<int32_t*>(buffers_.upper.token);
  context_.ops->place_tokens(context_, args);
}

void Runner::choose(const StepChoice& choice) {
  Turn& turn = turns_[static_cast<size_t>(turn_)];
  turn.samples = static_cast<int32_t>(choice.rows.size());
  if (turn.samples > 0) {
    context_.ops->sample(context_, {.rows = turn.samples,
                                    .vocab = model_.config().vocab_size,
                                    .logits = buffers_.logits.as<float>(),
                                    .row = choice_.as<SampleRow>(),
                                    .chosen = turn.device_chosen.as<int32_t>()});
    context_.ops->copy(context_, turn.chosen, turn.device_chosen.as<int32_t>(),
                       turn.samples * static_cast<int64_t>(sizeof(int32_t)));
  }
  if (turn.mark != nullptr) context_.ops->set_mark(context_, turn.mark);
}

std::span<const int32_t> Runner::chosen(int32_t ticket) {
  const Turn& turn = turns_[static_cast<size_t>(ticket)];
  if (turn.mark != nullptr) context_.ops->wait_mark(context_, turn.mark);
  return {turn.chosen, static_cast<size_t>(turn.samples)};
}

std::span<const float> Runner::fetch(std::span<const uint8_t> rows) {
  const auto samples = static_cast<size_t>(step_.samples());
  const auto vocab = static_cast<size_t>(model_.config().vocab_size);
  const auto* from = buffers_.logits.as<float>();
  // Rows that follow one another are one copy; all but the last run, which waits for the step, are only asked for.
  const auto wanted = [&](size_t i) { return rows.empty() || rows[i] != 0; };
  size_t first = 0, end = 0;
  for (size_t i = 0; i < samples; ++i) {
    if (!wanted(i)) continue;
    if (i != end && end > first) {
      context_.ops->copy(context_, logits_ + first * vocab, from + first * vocab,
                         static_cast<int64_t>((end - first) * vocab * sizeof(float)));
    }
    if (i != end || end == first) first = i;
    end = i + 1;
  }
  // One value at least: the copy is what waits for the step.
  const size_t values = std::max<size_t>((end - first) * vocab, 1);
  context_.ops->copy_out(context_, logits_ + first * vocab, from + first * vocab,
                         static_cast<int64_t>(values * sizeof(float)));
  return {logits_, samples * vocab};
}

void Runner::commit(std::span<const int32_t> accepted) {
  if (recorded_) return recorder_->commit(accepted);
  std::optional<StageScope> scope;
  if (measured_) {
    scope.emplace(context_, *clock_);
    clock_->begin(Stage::kOther);
  }
  mdi::commit(context_, model_, state_, step_, buffers_, accepted);
  if (!measured_) return;
  clock_->pause();
  measured_ = false;
  measured_done_ = true;
}

std::optional<PerStage<double>> Runner::take_stages() {
  if (!measured_done_ || !clock_->passed()) return std::nullopt;
  measured_done_ = false;
  return clock_->read();
}

Drafts Runner::propose(std::span<const DraftSequence> sequences, const DraftChoice& choose) {
  return draft(context_, model_, state_, sequences, buffers_, *draft_buffers_, choose);
}

}  // namespace mdi
