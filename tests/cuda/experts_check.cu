// Checks of the experts: routed (empty experts, foreign choices, ties of nothing, many rows of one expert, several
// passes) and shared; timings of a layer's experts at the released shapes.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "device_data.cuh"
#include "harness.h"
#include "kernels/cpu/stages.h"
#include "kernels/cuda/expert_rows.h"
#include "kernels/cuda/grouped.h"
#include "kernels/cuda/stages.h"
#include "random_data.h"

namespace mdi::check {
namespace {

// An expert's three weights inside packs, as both backends want them.
struct Layer {
  TestWeight w1, w2, w3;
  std::vector<ExpertWeights> host, device;
};

LinearWeight part(const LinearWeight& all, int64_t e, int64_t n) {
  LinearWeight w = all;
  const int64_t blocks = (all.k + 31) / 32;
  w.n = n;
  w.data = static_cast<const uint8_t*>(all.data) + e * n * (all.kind == WeightKind::kE2M1 ? all.k / 2 : all.k);
  w.scale = all.scale + e * (all.kind == WeightKind::kE2M1 ? n : n / 32) * blocks;
  return w;
}

Layer make_layer(Random& random, WeightKind kind, int64_t count, int64_t dim, int64_t inter) {
  Layer layer;
  layer.w1 = random_weight(random, kind, count * inter, dim);
  layer.w3 = random_weight(random, kind, count * inter, dim);
  layer.w2 = random_weight(random, kind, count * dim, inter);
  for (int64_t e = 0; e < count; ++e) {
    layer.host.push_back(
        {.w1 = part(layer.w1.host, e, inter), .w2 = part(layer.w2.host, e, dim), .w3 = part(layer.w3.host, e, inter)});
    layer.device.push_back({.w1 = part(layer.w1.device, e, inter),
                            .w2 = part(layer.w2.device, e, dim),
                            .w3 = part(layer.w3.device, e, inter)});
  }
  return layer;
}

enum class Routing { kUniform, kSkewed, kForeign };

std::vector<int32_t> make_routing(Random& random, int64_t tokens, int64_t topk, int64_t experts, int64_t first,
                                  int64_t count, Routing routing) {
  std::vector<int32_t> index;
  std::vector<int32_t> all(static_cast<size_t>(experts));
  for (int64_t t = 0; t < tokens; ++t) {
    std::iota(all.begin(), all.end(), 0);
    for (int64_t c = 0; c < topk; ++c) {
      int64_t pick = c + random.below(experts - c);
      // Skewed: half of the choices fall on the first local expert while it is free.
      if (routing == Routing::kSkewed && c == 0 && random.below(2) == 0) pick = first;
      std::swap(all[static_cast<size_t>(c)], all[static_cast<size_t>(pick)]);
      int32_t chosen = all[static_cast<size_t>(c)];
      if (routing == Routing::kForeign && chosen >= first && chosen < first + count) {
        chosen = static_cast<int32_t>(first + count) + chosen;  // an id of no local expert
      }
      index.push_back(chosen);
    }
  }
  return index;
}

void check_routed(Harness& h, int64_t tokens, int64_t dim, int64_t inter, int64_t count, Routing routing, Rows rows) {
  Random random(static_cast<uint64_t>(tokens + dim + count));
  const int64_t topk = std::min<int64_t>(3, count), experts = count * 2, first = count / 2;
  const Layer layer = make_layer(random, WeightKind::kE2M1, count, dim, inter);
  const Mirror<int32_t> index(make_routing(random, tokens, topk, experts, first, count, routing));
  std::vector<bf16> values = random_bf16(random, tokens, dim, rows);
  for (int64_t t = 0; t < tokens; ++t) {  // rows that no local expert takes are never read
    bool local = false;
    for (int64_t c = 0; c < topk; ++c) {
      const int64_t e = index.host[static_cast<size_t>(t * topk + c)];
      local = local || (e >= first && e < first + count);
    }
    if (!local) std::fill_n(values.begin() + t * dim, dim, bf16{0x7FC0});
  }
  const Mirror<bf16> x(values);
  std::vector<float> w = random_floats(random, tokens, topk);
  for (float& v : w) v = 0.1f + std::fabs(v) * 0.3f;
  const Mirror<float> weight(w);
  Mirror<float> sum(static_cast<size_t>(tokens * dim));
  StepView step;
  step.rows = static_cast<int32_t>(tokens);
  RoutedExpertsArgs args{.topk = static_cast<int32_t>(topk),
                         .first = static_cast<int32_t>(first),
                         .count = static_cast<int32_t>(count),
                         .experts_total = static_cast<int32_t>(experts),
                         .swiglu_limit = 10.0f,
                         .x = x.host.data(),
                         .index = index.host.data(),
                         .weight = weight.host.data(),
                         .experts = layer.host.data(),
                         .sum = sum.host.data()};
  cpu::routed_experts(h.cpu(), step, args);
  args.x = x.device.data();
  args.index = index.device.data();
  args.weight = weight.device.data();
  args.experts = layer.device.data();
  args.sum = sum.device.data();
  cuda::routed_experts(h.cuda(), step, args);
  // A bf16 rounding that differs inside (g, u, t) moves an act_quant code, one in 16 to 32 of a value's size.
  h.report("routed",
           "T=" + std::to_string(tokens) + " dim=" + std::to_string(dim) + " inter=" + std::to_string(inter) +
               " experts=" + std::to_string(count) +
               (routing == Routing::kSkewed    ? " skewed "
                : routing == Routing::kForeign ? " foreign "
                                               : " ") +
               rows_name(rows),
           compare(sum, dim, {.ulps = 2, .row = 2e-2}));
}

void check_shared(Harness& h, int64_t tokens, int64_t dim, int64_t inter, Rows rows) {
  Random random(static_cast<uint64_t>(tokens * 3 + dim));
  const Layer layer = make_layer(random, WeightKind::kE4M3, 1, dim, inter);
  const Mirror<bf16> x(random_bf16(random, tokens, dim, rows));
  const Mirror<float> sum(random_floats(random, tokens, dim));
  Mirror<bf16> y(static_cast<size_t>(tokens * dim));
  StepView step;
  step.rows = static_cast<int32_t>(tokens);
  SharedExpertArgs args{
      .swiglu_limit = 10.0f, .x = x.host.data(), .weights = layer.host[0], .sum = sum.host.data(), .y = y.host.data()};
  cpu::shared_expert(h.cpu(), step, args);
  args = {.swiglu_limit = 10.0f,
          .x = x.device.data(),
          .weights = layer.device[0],
          .sum = sum.device.data(),
          .y = y.device.data()};
  cuda::shared_expert(h.cuda(), step, args);
  h.report("shared",
           "T=" + std::to_string(tokens) + " dim=" + std::to_string(dim) + " inter=" + std::to_string(inter) + " " +
               rows_name(rows),
           compare(y, dim, {.ulps = 2, .row = 2e-2}));
  // Begun ahead of its turn, beside other work on the stream, whatever lies in the workspace.
  const std::vector<bf16> want = y.device.download();
  y.device.poison();
  cuda::begin_shared_expert(h.cuda(), step, args);
  {
    const cuda::WorkspaceScope scope(h.cuda());
    CudaWorkspace& workspace = h.cuda().workspace;
    MDI_CUDA(cudaMemsetAsync(workspace.base + workspace.used, kPoison,
                             static_cast<size_t>(workspace.size - workspace.used), h.cuda().stream));
  }
  cuda::shared_expert(h.cuda(), step, args);
  h.report("shared, begun ahead", "T=" + std::to_string(tokens) + " dim=" + std::to_string(dim),
           compare_bits(y.device.download(), want));
}

// The same token gives the same bits among few and among many tokens.
void check_invariance(Harness& h) {
  const int64_t tokens = 700, dim = 512, inter = 256, count = 4, topk = 2;
  Random random(21);
  const Layer layer = make_layer(random, WeightKind::kE2M1, count, dim, inter);
  const Mirror<bf16> x(random_bf16(random, tokens, dim));
  const Mirror<int32_t> index(make_routing(random, tokens, topk, count, 0, count, Routing::kUniform));
  const Mirror<float> weight(random_floats(random, tokens, topk));
  const auto run = [&](int64_t begin, int64_t n) {
    DeviceArray<float> sum(static_cast<size_t>(n * dim));
    StepView step;
    step.rows = static_cast<int32_t>(n);
    cuda::routed_experts(h.cuda(), step,
                         {.topk = static_cast<int32_t>(topk),
                          .first = 0,
                          .count = static_cast<int32_t>(count),
                          .swiglu_limit = 10.0f,
                          .x = x.device.data() + begin * dim,
                          .index = index.device.data() + begin * topk,
                          .weight = weight.device.data() + begin * topk,
                          .experts = layer.device.data(),
                          .sum = sum.data()});
    return sum.download();
  };
  const std::vector<float> all = run(0, tokens);
  for (const auto& [begin, n] : {std::pair<int64_t, int64_t>{0, 1}, {5, 8}, {100, 64}, {0, 333}}) {
    const std::vector<float> want(all.begin() + begin * dim, all.begin() + (begin + n) * dim);
    h.report("routed invariance", "T=" + std::to_string(n), compare_bits(run(begin, n), want));
  }
}

constexpr int64_t kDim = 5120, kInter = 2304, kCount = 96, kExperts = 384, kTopk = 6;

// The kernels of a layer one by one, and the products at every tile width.
void time_parts(Harness& h, const DeviceWeight& w1, const DeviceWeight& w3, const DeviceWeight& w2) {
  for (const int64_t tokens : {16384, 256, 1024}) {
    Random random(3);
    const std::vector<int32_t> chosen = make_routing(random, tokens, kTopk, kExperts, 0, kCount, Routing::kUniform);
    const DeviceArray<int32_t> index(chosen);
    DeviceArray<float> weight(chosen.size()), sum(static_cast<size_t>(tokens * kDim));
    fill(Fill::kFloats, weight.data(), static_cast<int64_t>(chosen.size()), 0.25f);
    DeviceArray<bf16> x(static_cast<size_t>(tokens * kDim));
    fill(Fill::kBF16, x.data(), tokens * kDim);
    CudaContext& context = h.cuda();
    const cuda::WorkspaceScope scope(context);
    const int64_t pass_rows = std::min<int64_t>(32768, tokens * kTopk);
    const cuda::ExpertRows rows =
        cuda::sort_expert_rows(context, index.data(), weight.data(), tokens, kTopk, 0, kCount, pass_rows);
    DeviceArray<bf16> gathered(static_cast<size_t>(pass_rows * kDim)), inner(static_cast<size_t>(pass_rows * kInter));
    fill(Fill::kBF16, inner.data(), pass_rows * kInter);
    // Results go elsewhere: fed back, they would shrink to zeros, which run faster.
    DeviceArray<bf16> results(static_cast<size_t>(pass_rows * kDim));
    const auto local =
        static_cast<double>(std::count_if(chosen.begin(), chosen.end(), [](int32_t e) { return e < kCount; }));
    const std::string text = "T=" + std::to_string(tokens);
    h.time("time expert sort", text, {}, [&](int) {
      const cuda::WorkspaceScope inside(context);
      cuda::sort_expert_rows(context, index.data(), weight.data(), tokens, kTopk, 0, kCount, pass_rows);
    });
    h.time("time expert gather", text, {.bytes = local * kDim * 4},
           [&](int) { cuda::gather_expert_rows(context, rows, 0, x.data(), kDim, true, gathered.data()); });
    h.time("time expert combine", text, {.bytes = local * kDim * 2 + static_cast<double>(tokens) * kDim * 4}, [&](int) {
      cuda::combine_expert_rows(context, rows, 0, index.data(), tokens, gathered.data(), kDim, sum.data());
    });
    const std::vector<int> widths =
        tokens > 2000 ? std::vector<int>{0, 96, 128, 144, 160, 192, 256} : std::vector<int>{0, 16, 24, 32, 64};
    for (const int width : widths) {
      cuda::GroupedProduct p;
      p.epilogue = cuda::Epilogue::kSwiglu;
      p.x_words = p.y_words = true;
      p.x = gathered.data();
      p.x_rows = pass_rows;
      p.ldx = kDim;
      p.weight[0] = w1.weight;
      p.weight[1] = w3.weight;
      p.groups = kCount;
      p.row_begin = rows.begin_of(0);
      p.usual_rows = tokens * kTopk / kExperts;
      p.width = width;
      p.y = results.data();
      p.ldy = kInter;
      p.row_weight = rows.row_weight;
      p.limit = 10;
      const double codes = static_cast<double>(kCount * kInter * kDim);
      h.time("time w13", text + " width " + std::to_string(width),
             {.bytes = 2 * codes * 0.53, .flops = 4 * local * kDim * kInter},
             [&](int) { cuda::grouped_product(context, p); });
      p.epilogue = cuda::Epilogue::kBF16;
      p.y_words = false;
      p.x = inner.data();
      p.ldx = kInter;
      p.weight[0] = w2.weight;
      p.y = results.data();
      p.ldy = kDim;
      h.time("time w2", text + " width " + std::to_string(width),
             {.bytes = codes * 0.53, .flops = 2 * local * kDim * kInter},
             [&](int) { cuda::grouped_product(context, p); });
    }
  }
}

void time_experts(Harness& h) {
  const DeviceWeight w1(WeightKind::kE2M1, kInter, kDim, kCount, 1), w3(WeightKind::kE2M1, kInter, kDim, kCount, 2),
      w2(WeightKind::kE2M1, kDim, kInter, kCount, 3);
  std::vector<ExpertWeights> experts;
  for (int64_t e = 0; e < kCount; ++e) experts.push_back({.w1 = w1.at(e), .w2 = w2.at(e), .w3 = w3.at(e)});
  for (const auto& [tokens, routing] : {std::pair<int64_t, Routing>{16384, Routing::kUniform},
                                        {16384, Routing::kSkewed},
                                        {512, Routing::kUniform},
                                        {256, Routing::kUniform},
                                        {1024, Routing::kUniform}}) {
    Random random(3);
    const std::vector<int32_t> chosen = make_routing(random, tokens, kTopk, kExperts, 0, kCount, routing);
    int64_t rows = 0;
    std::vector<int> used(kCount);
    for (const int32_t e : chosen) {
      if (e >= kCount) continue;
      ++rows;
      used[static_cast<size_t>(e)] = 1;
    }
    const auto active = static_cast<double>(std::accumulate(used.begin(), used.end(), 0));
    const DeviceArray<int32_t> index(chosen);
    DeviceArray<float> weight(chosen.size()), sum(static_cast<size_t>(tokens * kDim));
    fill(Fill::kFloats, weight.data(), static_cast<int64_t>(chosen.size()), 0.25f);
    DeviceArray<bf16> x(static_cast<size_t>(tokens * kDim));
    fill(Fill::kBF16, x.data(), tokens * kDim);
    StepView step;
    step.rows = static_cast<int32_t>(tokens);
    const double mults = static_cast<double>(rows) * 3.0 * kDim * kInter;
    const Work work{.bytes = active * 3 * kDim * kInter * (0.5 + 1.0 / 32) + static_cast<double>(tokens) * kDim * 6,
                    .flops = 2 * mults,
                    .tflops = kFP8TFlops};
    h.time("time routed",
           "T=" + std::to_string(tokens) + " rows=" + std::to_string(rows) +
               (routing == Routing::kSkewed ? " skewed" : " uniform"),
           work, [&](int) {
             cuda::routed_experts(h.cuda(), step,
                                  {.topk = kTopk,
                                   .first = 0,
                                   .count = kCount,
                                   .experts_total = kExperts,
                                   .swiglu_limit = 10.0f,
                                   .x = x.data(),
                                   .index = index.data(),
                                   .weight = weight.data(),
                                   .experts = experts.data(),
                                   .sum = sum.data()});
           });
  }
  time_parts(h, w1, w3, w2);
  const DeviceWeight s1(WeightKind::kE4M3, kInter, kDim, 1), s3(WeightKind::kE4M3, kInter, kDim, 1),
      s2(WeightKind::kE4M3, kDim, kInter, 1);
  for (const int64_t tokens : {4096, 64}) {
    DeviceArray<bf16> x(static_cast<size_t>(tokens * kDim)), y(static_cast<size_t>(tokens * kDim));
    DeviceArray<float> sum(static_cast<size_t>(tokens * kDim));
    fill(Fill::kBF16, x.data(), tokens * kDim);
    fill(Fill::kFloats, sum.data(), tokens * kDim);
    StepView step;
    step.rows = static_cast<int32_t>(tokens);
    const Work work{.bytes = 3.0 * kDim * kInter + static_cast<double>(tokens) * kDim * 8,
                    .flops = 6.0 * static_cast<double>(tokens) * kDim * kInter,
                    .tflops = kFP8TFlops};
    h.time("time shared", "T=" + std::to_string(tokens), work, [&](int) {
      cuda::shared_expert(h.cuda(), step,
                          {.swiglu_limit = 10.0f,
                           .x = x.data(),
                           .weights = {.w1 = s1.weight, .w2 = s2.weight, .w3 = s3.weight},
                           .sum = sum.data(),
                           .y = y.data()});
    });
  }
}

}  // namespace
}  // namespace mdi::check

int main(int argc, char** argv) {
  using mdi::check::Routing;
  using mdi::check::Rows;
  mdi::check::Harness h("experts", argc, argv);
  if (h.wants("routed")) {
    for (const Routing routing : {Routing::kUniform, Routing::kSkewed, Routing::kForeign}) {
      for (const int64_t tokens : {0, 1, 7, 130}) {
        mdi::check::check_routed(h, tokens, 256, 256, 5, routing, Rows::kGaussian);
        mdi::check::check_routed(h, tokens, 64, 64, 6, routing, Rows::kGaussian);
      }
    }
    if (!h.small()) {
      mdi::check::check_routed(h, 1500, 768, 512, 8, Routing::kSkewed, Rows::kGaussian);
      // More than one pass: 3 choices of 24,000 tokens, half of them local.
      mdi::check::check_routed(h, 24000, 256, 256, 4, Routing::kUniform, Rows::kGaussian);
      for (const Rows rows : mdi::check::kAllRows) {
        mdi::check::check_routed(h, 90, 1280, 512, 4, Routing::kUniform, rows);
      }
      mdi::check::check_invariance(h);
    }
  }
  if (h.wants("shared")) {
    for (const int64_t tokens : {0, 1, 33, 300}) {
      mdi::check::check_shared(h, tokens, 256, 256, Rows::kGaussian);
      mdi::check::check_shared(h, tokens, 64, 64, Rows::kGaussian);
    }
    for (const Rows rows : mdi::check::kAllRows) mdi::check::check_shared(h, 70, 1280, 768, rows);
  }
  if (h.timing()) mdi::check::time_experts(h);
  return h.finish();
}
