#include "engine/generator.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "core/error.h"

namespace mdi {

namespace {
double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "?";
}

Generator::Generator(Context& context, const Model& model, int64_t max_length, int32_t chunk, ReplaySettings replay)
    : context_(context), model_(model), max_length_(max_length), replay_(replay) {
  const ModelConfig& c = model.config();
  if (max_length < 1 || max_length > c.max_position_embeddings) {
    throw Error("generate", "a length of " + std::to_string(max_length) + " tokens is outside 1.." +
                                std::to_string(c.max_position_embeddings) + " (max_position_embeddings)");
  }
  if (chunk < 1) throw Error("generate", "chunk: expected 1 or more, found " + std::to_string(chunk));
  if (replay.rows < 0) throw Error("generate", "replay: expected 0 or more rows, found " + std::to_string(replay.rows));
  if (replay.rows > 0 && last_source_layer(c) < 0) {
    throw Error("generate", "bounded replay needs a model with KV sources");
  }
  const bool drafts = model.draft_stages() > 0;
  const int32_t verified = drafts ? c.dspark_block_size + 1 : 1;
  chunk_ = static_cast<int32_t>(std::min<int64_t>(chunk, max_length));
  const int64_t blocks = blocks_for(max_length);
  state_ = make_state(context, model, 1, blocks);
  buffers_ = std::make_unique<StepBuffers>(context, model, std::max(chunk_, verified), verified, 1,
                                           static_cast<int32_t>(blocks));
  if (drafts) draft_buffers_ = std::make_unique<DraftBuffers>(context, model, 1);
  blocks_.resize(static_cast<size_t>(blocks));
  std::iota(blocks_.begin(), blocks_.end(), 0);
}

std::span<const float> Generator::logits(int32_t sample) const {
  const auto vocab = static_cast<size_t>(model_.config().vocab_size);
  return std::span(logits_).subspan(static_cast<size_t>(sample) * vocab, vocab);
}

Step Generator::run_step(const PromptPart& part, int64_t start, int32_t samples) {
  std::vector<int32_t> sampled(static_cast<size_t>(samples));
  std::iota(sampled.begin(), sampled.end(), static_cast<int32_t>(part.tokens.size()) - samples);
  const StepSequence sequence{.slot = 0,
                              .start = static_cast<int32_t>(start),
                              .tokens = part.tokens,
                              .dead = part.dead,
                              .image_rows = part.image_rows,
                              .blocks = blocks_,
                              .sample_tokens = sampled,
                              .replay_from = replay_from(segments_)};
  Step step = make_step(model_, state_, {&sequence, 1}, replay_.form);
  forward(context_, model_, state_, step, *buffers_);
  logits_.resize(static_cast<size_t>(samples) * static_cast<size_t>(model_.config().vocab_size));
  if (samples > 0) {
    context_.ops->copy_out(context_, logits_.data(), buffers_->logits.as<float>(),
                           static_cast<int64_t>(logits_.size() * sizeof(float)));
  }
  return step;
}

void Generator::commit_step(const Step& step, int32_t accepted) {
  commit(context_, model_, state_, step, *buffers_, {&accepted, 1});
  committed_.insert(committed_.end(), step.token.begin(), step.token.begin() + accepted);
  ImageSpans& images = committed_images_;
  images.dead.insert(images.dead.end(), step.dead.begin(), step.dead.begin() + accepted);
  // Only prompts have images, and a prompt's step is accepted whole.
  images.rows.insert(images.rows.end(), step.image_rows.begin(), step.image_rows.end());
}

void Generator::forget() {
  committed_.clear();
  committed_images_ = {};
  segments_.clear();
  clear_slot(context_, state_, 0);
}

int64_t Generator::reuse(const GenerateRequest& request) {
  // One token at least must run, to have logits.
  const bool same_tokens = committed_.size() < request.prompt.size() &&
                           std::equal(committed_.begin(), committed_.end(), request.prompt.begin());
  if (!same_tokens || !begins_with(request.images, committed_images_)) forget();
  return static_cast<int64_t>(committed_.size());
}

bool Generator::prefill(const GenerateRequest& request, int64_t from, const GenerateCallbacks& callbacks) {
  const auto total = static_cast<int32_t>(request.prompt.size());
  const auto start = static_cast<int32_t>(from);
  const ReplaySegment segment = replay_segment(replay_.rows, start, total);
  if (segment.drops()) segments_.push_back(segment);
  for (const ReplayChunk& chunk : plan_replay(replay_.rows, start, total, chunk_)) {
    const PromptPart part = part_of(request.prompt, request.images, chunk.start, chunk.count);
    const int32_t done = chunk.start + chunk.count;
    commit_step(run_step(part, chunk.start, done == total ? 1 : 0), chunk.count);
    if (callbacks.on_prefill && !callbacks.on_prefill(done, total)) {
      // The upper layers have not seen what they should keep: nothing can go on from here.
      if (segment.drops() && done < total) forget();
      return false;
    }
  }
  return true;
}

std::vector<Proposal> Generator::propose(const GenerateRequest& request, int32_t anchor, int64_t length) {
  std::vector<Proposal> proposals;
  const DraftSequence sequence{
      .slot = 0, .length = static_cast<int32_t>(length), .anchor = anchor, .replay_from = replay_from(segments_)};
  draft(context_, model_, state_, {&sequence, 1}, *buffers_, *draft_buffers_,
        [&](size_t, int i, std::span<const float> row) {
          const RandomKey key{
              .seed = request.sampling.seed, .sequence = 0, .position = static_cast<uint64_t>(length + 1 + i)};
          Proposal proposal{.token = 0, .distribution = distribution(row, request.sampling)};
          proposal.token = draw(proposal.distribution, random_uniform(key, kDrawProposal));
          proposals.push_back(std::move(proposal));
          return proposals.back().token;
        });
  return proposals;
}

GenerateResult Generator::run(const GenerateRequest& request, const GenerateCallbacks& callbacks) {
  const auto total = static_cast<int64_t>(request.prompt.size());
  if (total == 0) throw Error("generate", "the prompt has no tokens");
  if (request.max_tokens < 1) throw Error("generate", "max_tokens: expected 1 or more");
  if (total + request.max_tokens > max_length_) {
    throw Error("generate", "a prompt of " + std::to_string(total) + " tokens and " +
                                std::to_string(request.max_tokens) + " new ones do not fit " +
                                std::to_string(max_length_));
  }
  if (request.draft && draft_buffers_ == nullptr) throw Error("generate", "the model has no draft layers");
  check_sampling(request.sampling, "generate");
  check_spans(request.images, total, model_.config().dim, "generate");

  GenerateResult result;
  result.reused_tokens = reuse(request);
  const auto block = static_cast<size_t>(request.draft ? model_.config().dspark_block_size : 0);
  result.proposed.resize(block);
  result.accepted.resize(block);
  const auto prefill_start = std::chrono::steady_clock::now();
  if (!prefill(request, result.reused_tokens, callbacks)) {
    result.finish = FinishReason::kCancelled;
    return result;
  }
  result.prefill_seconds = seconds_since(prefill_start);

  // Emits a token; true when the generation ends with it.
  const auto emit = [&](int32_t token) {
    result.tokens.push_back(token);
    const bool go_on = !callbacks.on_token || callbacks.on_token(token);
    const auto& stops = request.stop_ids;
    if (!go_on || std::find(stops.begin(), stops.end(), token) != stops.end()) {
      result.finish = FinishReason::kStop;
      return true;
    }
    return static_cast<int32_t>(result.tokens.size()) == request.max_tokens;
  };

  const auto decode_start = std::chrono::steady_clock::now();
  int64_t length = total;  // committed tokens
  int32_t next = sample(logits(0), request.sampling, 0, static_cast<uint64_t>(length));
  while (!emit(next)) {
    std::vector<Proposal> proposals;
    if (request.draft) {
      proposals = propose(request, next, length);
      // The block is computed at its trained size and cut to what may still be emitted, the next token included.
      const auto wanted = static_cast<size_t>(request.max_tokens) - result.tokens.size() - 1;
      proposals.resize(std::min(proposals.size(), wanted));
    }
    std::vector<int32_t> tokens = {next};
    for (const Proposal& proposal : proposals) tokens.push_back(proposal.token);
    const auto rows = static_cast<int32_t>(tokens.size());
    const Step step = run_step({.tokens = tokens}, length, rows);
    ++result.decode_steps;

    std::vector<std::vector<TokenProbability>> targets;
    targets.reserve(tokens.size());
    for (int32_t i = 0; i < rows; ++i) targets.push_back(distribution(logits(i), request.sampling));
    const RandomKey key{.seed = request.sampling.seed, .sequence = 0, .position = static_cast<uint64_t>(length + 1)};
    const Verdict verdict = verify(targets, proposals, key);
    commit_step(step, 1 + verdict.accepted);
    length += 1 + verdict.accepted;
    for (size_t i = 0; i < proposals.size(); ++i) {
      ++result.proposed[i];
      if (static_cast<int32_t>(i) < verdict.accepted) ++result.accepted[i];
    }
    bool ended = false;
    for (int32_t i = 0; i < verdict.accepted && !ended; ++i) ended = emit(proposals[static_cast<size_t>(i)].token);
    if (ended) break;
    next = verdict.next;
  }
  result.decode_seconds = seconds_since(decode_start);
  return result;
}

}  // namespace mdi
