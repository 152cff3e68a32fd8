// The stages of the residual stream, the head and the commits against the CPU backend.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "device_data.cuh"
#include "harness.h"
#include "kernels/cpu/stages.h"
#include "kernels/cuda/stages.h"
#include "random_data.h"
#include "step_shapes.h"

namespace mdi::check {

namespace {

// ---- embed ----------------------------------------------------------------------------------------------------------
void check_embed(Harness& h, const TestStep& step, int32_t dim, int32_t hc, bool replaced) {
  Random random(static_cast<uint64_t>(dim));
  const int64_t rows = step.host.rows;
  const Mirror<bf16> table(random_bf16(random, 100, dim)), other(random_bf16(random, 3, dim));
  std::vector<int32_t> of;
  for (int64_t i = 0; i < rows; ++i) of.push_back(static_cast<int32_t>(random.below(5)) - 2);
  for (int32_t& i : of) i = std::max(i, -1);
  const Mirror<int32_t> override_of(of);
  Mirror<bf16> stream(static_cast<size_t>(rows * hc * dim));
  Mirror<float> pre(static_cast<size_t>(rows * hc));
  EmbedArgs a{.dim = dim, .hc = hc, .table = table.host.data(), .h = stream.host.data(), .pre = pre.host.data()};
  EmbedArgs b{.dim = dim, .hc = hc, .table = table.device.data(), .h = stream.device.data(), .pre = pre.device.data()};
  if (replaced) {
    a.override_rows = other.host.data(), a.override_of = override_of.host.data();
    b.override_rows = other.device.data(), b.override_of = override_of.device.data();
  }
  cpu::embed(h.cpu(), step.host, a);
  cuda::embed(h.cuda(), step.device, b);
  h.report("embed stream", text(step, "dim " + std::to_string(dim)), compare_bits(stream));
  h.report("embed pre", text(step, "dim " + std::to_string(dim)), compare_bits(pre));
}

// ---- hyper-connections ----------------------------------------------------------------------------------------------
struct Hyper {
  int32_t dim, hc;
  Mirror<float> fn, scale, base, pre;
  Mirror<bf16> h, norm, y;
  Mirror<float> post, comb;

  Hyper(uint64_t seed, int64_t rows, int32_t width, int32_t copies, Rows kind) : dim(width), hc(copies) {
    Random random(seed);
    const int64_t mixes = (2 + hc) * hc, k = int64_t{hc} * dim;
    fn = Mirror<float>(random_floats(random, mixes, k, Rows::kGaussian, 1.0f / std::sqrt(static_cast<float>(k))));
    scale = Mirror<float>(random_floats(random, 1, 3));
    base = Mirror<float>(random_floats(random, 1, mixes));
    pre = Mirror<float>(random_floats(random, rows, hc, Rows::kPositive));
    post = Mirror<float>(random_floats(random, rows, hc));
    comb = Mirror<float>(random_floats(random, rows, int64_t{hc} * hc));
    h = Mirror<bf16>(random_bf16(random, rows, k, kind));
    norm = Mirror<bf16>(random_bf16(random, 1, dim));
    y = Mirror<bf16>(random_bf16(random, rows, dim, kind));
  }
};

struct Collapsed {
  Mirror<bf16> x;
  Mirror<float> pre, post, comb;
  Collapsed(int64_t rows, int32_t dim, int32_t hc)
      : x(static_cast<size_t>(rows * dim)),
        pre(static_cast<size_t>(rows * hc)),
        post(static_cast<size_t>(rows * hc)),
        comb(static_cast<size_t>(rows * hc * hc)) {}
};

// Rows [first, first + rows) on the device; the first call's rows on the host too.
void collapse(Harness& h, const Hyper& d, int64_t first, int64_t rows, Collapsed& out, bool host) {
  StepView step;
  step.rows = static_cast<int32_t>(rows);
  HcCollapseArgs a;
  a.dim = d.dim, a.hc = d.hc, a.sinkhorn_iters = 20, a.eps = 1e-6f, a.norm_eps = 1e-20f;
  const auto set = [&](auto side) {
    a.h = side(d.h) + first * d.hc * d.dim;
    a.pre_in = side(d.pre) + first * d.hc;
    a.weights = {side(d.fn), side(d.scale), side(d.base)};
    a.norm = side(d.norm);
    a.x = const_cast<bf16*>(side(out.x));
    a.pre_out = const_cast<float*>(side(out.pre));
    a.post = const_cast<float*>(side(out.post));
    a.comb = const_cast<float*>(side(out.comb));
  };
  if (host) {
    set([](const auto& m) { return m.host.data(); });
    cpu::hc_collapse(h.cpu(), step, a);
  }
  set([](const auto& m) { return std::as_const(m.device).data(); });
  cuda::hc_collapse(h.cuda(), step, a);
}

void check_collapse(Harness& h, int64_t rows, int32_t dim, int32_t hc, Rows kind) {
  const Hyper d(static_cast<uint64_t>(rows + dim), rows, dim, hc, kind);
  Collapsed out(rows, dim, hc);
  collapse(h, d, 0, rows, out, true);
  const std::string shape =
      "[" + std::to_string(rows) + ", " + std::to_string(hc) + ", " + std::to_string(dim) + "] " + rows_name(kind);
  h.report("hc_collapse x", shape, compare_bits(out.x));
  // fp32 sums in another order, through a sigmoid or 20 rounds of Sinkhorn.
  h.report("hc_collapse pre", shape, compare(out.pre, hc, {.ulps = 0, .row = 4e-5}));
  h.report("hc_collapse post", shape, compare(out.post, hc, {.ulps = 0, .row = 4e-5}));
  h.report("hc_collapse comb", shape, compare(out.comb, hc * hc, {.ulps = 0, .row = 4e-5}));
  if (rows < 2) return;
  // The last row alone has the bits that it has among the others.
  Collapsed alone(1, dim, hc);
  collapse(h, d, rows - 1, 1, alone, false);
  const auto tail = [&](const auto& all, size_t n) {
    const auto values = all.device.download();
    return std::decay_t<decltype(values)>(values.end() - static_cast<ptrdiff_t>(n), values.end());
  };
  h.report("hc_collapse alone x", shape,
           compare_bits(alone.x.device.download(), tail(out.x, static_cast<size_t>(dim))));
  h.report("hc_collapse alone comb", shape,
           compare_bits(alone.comb.device.download(), tail(out.comb, static_cast<size_t>(hc * hc))));
}

void check_expand(Harness& h, int64_t rows, int32_t dim, int32_t hc, Rows kind) {
  Hyper d(static_cast<uint64_t>(rows * 3 + dim), rows, dim, hc, kind);
  StepView step;
  step.rows = static_cast<int32_t>(rows);
  const std::string shape =
      "[" + std::to_string(rows) + ", " + std::to_string(hc) + ", " + std::to_string(dim) + "] " + rows_name(kind);
  Mirror<bf16> mean(static_cast<size_t>(rows * 2 * dim));
  cpu::mean_copies(h.cpu(), step, {dim, hc, d.h.host.data(), mean.host.data() + dim, 2 * dim});
  cuda::mean_copies(h.cuda(), step, {dim, hc, d.h.device.data(), mean.device.data() + dim, 2 * dim});
  h.report("mean_copies", shape, compare_bits(mean));
  cpu::hc_expand(h.cpu(), step, {dim, hc, d.y.host.data(), d.post.host.data(), d.comb.host.data(), d.h.host.data()});
  cuda::hc_expand(h.cuda(), step,
                  {dim, hc, d.y.device.data(), d.post.device.data(), d.comb.device.data(), d.h.device.data()});
  h.report("hc_expand", shape, compare_bits(d.h));
}

void check_head(Harness& h, int64_t rows, int32_t samples, int32_t dim, int32_t hc, int64_t vocab) {
  Random random(static_cast<uint64_t>(rows + dim + samples));
  const Hyper d(static_cast<uint64_t>(rows * 5 + dim), rows, dim, hc, Rows::kGaussian);
  const TestWeight weight = random_weight(random, WeightKind::kBF16, vocab, dim);
  std::vector<int32_t> which;
  for (int32_t i = 0; i < samples; ++i) which.push_back(static_cast<int32_t>(random.below(rows)));
  const Mirror<int32_t> sample_rows(which);
  Mirror<bf16> z(static_cast<size_t>(samples * dim));
  Mirror<float> logits(static_cast<size_t>(samples * vocab));
  HeadArgs a;
  a.dim = dim, a.hc = hc, a.samples = samples, a.eps = 1e-20f;
  StepView step;
  step.rows = static_cast<int32_t>(rows);
  a.sample_rows = sample_rows.host.data(), a.h = d.h.host.data(), a.pre = d.pre.host.data();
  a.norm = d.norm.host.data(), a.head = weight.host, a.z = z.host.data(), a.logits = logits.host.data();
  cpu::head(h.cpu(), step, a);
  a.sample_rows = sample_rows.device.data(), a.h = d.h.device.data(), a.pre = d.pre.device.data();
  a.norm = d.norm.device.data(), a.head = weight.device, a.z = z.device.data(), a.logits = logits.device.data();
  cuda::head(h.cuda(), step, a);
  const std::string shape = "samples " + std::to_string(samples) + " dim " + std::to_string(dim);
  h.report("head z", shape, compare_bits(z));
  // The oracle adds one after the other, the tensor cores in groups: 5,120 terms differ by 2e-5 of a row's RMS.
  h.report("head logits", shape, compare(logits, vocab, {.ulps = 0, .row = 4e-5}));
}

// ---- commits --------------------------------------------------------------------------------------------------------
void check_commit(Harness& h, const TestStep& step, int32_t window, int32_t head_dim) {
  Random random(static_cast<uint64_t>(window + head_dim));
  const WindowRow row{head_dim};
  const int64_t rows = step.host.rows, slot_bytes = 2 * window * row.bytes();
  std::vector<std::byte> fresh(static_cast<size_t>(rows * row.bytes()));
  for (std::byte& b : fresh) b = static_cast<std::byte>(random.next() & 255);
  const Mirror<std::byte> window_rows(fresh);
  Mirror<std::byte> rings(static_cast<size_t>(step.slots * slot_bytes));  // poisoned alike on both sides
  Mirror<float> pending(static_cast<size_t>(step.slots * 3 * 2 * head_dim));
  const Mirror<float> step_pending(random_floats(random, rows, 2 * head_dim));
  std::vector<int32_t> counts;
  for (int32_t s = 0; s < step.host.sequences; ++s) {
    const int32_t n = step.host.seq_count[s];
    counts.push_back(s == 1 ? 0 : s == 2 ? std::min(n, 1) : n);
  }
  const Mirror<int32_t> accepted(counts);
  RingView ring{
      .base = rings.host.data() + window * row.bytes(), .slot_stride = slot_bytes, .window = window, .row = row};
  cpu::commit_ring(h.cpu(), step.host, {accepted.host.data(), window_rows.host.data(), ring});
  ring.base = rings.device.data() + window * row.bytes();
  cuda::commit_ring(h.cuda(), step.device, {accepted.device.data(), window_rows.device.data(), ring});
  h.report("commit_ring", text(step, "window " + std::to_string(window)), compare_bits(rings));
  const int64_t stride = 3 * 2 * head_dim;
  cpu::commit_pending(
      h.cpu(), step.host,
      {accepted.host.data(), head_dim, step_pending.host.data(), pending.host.data() + 2 * head_dim, stride});
  cuda::commit_pending(
      h.cuda(), step.device,
      {accepted.device.data(), head_dim, step_pending.device.data(), pending.device.data() + 2 * head_dim, stride});
  h.report("commit_pending", text(step, "head " + std::to_string(head_dim)), compare_bits(pending));
}

// ---- time -----------------------------------------------------------------------------------------------------------
// Streams of the released width, made on the device.
struct TimedStream {
  static constexpr int32_t kDim = 5120, kCopies = 4, kMixes = (2 + kCopies) * kCopies;
  DeviceArray<float> fn{size_t{kMixes} * kCopies * kDim}, scale{3}, base{kMixes}, pre, pre_out, post, comb;
  DeviceArray<bf16> h, x, y, norm{kDim};

  explicit TimedStream(int64_t rows)
      : pre(static_cast<size_t>(rows * kCopies)),
        pre_out(pre.size()),
        post(pre.size()),
        comb(pre.size() * kCopies),
        h(pre.size() * kDim),
        x(static_cast<size_t>(rows * kDim)),
        y(x.size()) {
    for (const auto* a : {&fn, &scale, &base, &pre, &post, &comb}) {
      fill(Fill::kFloats, a->data(), static_cast<int64_t>(a->size()), a == &fn ? 0.01f : 0.5f);
    }
    for (const auto* a : {&h, &y, &norm}) fill(Fill::kBF16, a->data(), static_cast<int64_t>(a->size()));
  }
};

void time_stream(Harness& h, int64_t rows) {
  using T = TimedStream;
  const int sets = rows >= 1024 ? 1 : 4;  // the stream of 4,096 rows is 168 MB
  std::vector<std::unique_ptr<T>> data;
  for (int s = 0; s < sets; ++s) data.push_back(std::make_unique<T>(rows));
  StepView step;
  step.rows = static_cast<int32_t>(rows);
  const std::string shape = "[" + std::to_string(rows) + ", 4, 5120]";
  const auto r = static_cast<double>(rows);
  const auto time = [&](const char* name, double bytes, auto launch) {
    h.time(
        name, shape, {.bytes = bytes}, [&](int s) { launch(*data[static_cast<size_t>(s)]); }, sets);
  };
  time("hc_collapse", r * 5 * 10240 + 2e6, [&](T& d) {
    HcCollapseArgs a;
    a.dim = T::kDim, a.hc = T::kCopies, a.sinkhorn_iters = 20, a.eps = 1e-6f, a.norm_eps = 1e-20f;
    a.h = d.h.data(), a.pre_in = d.pre.data(), a.weights = {d.fn.data(), d.scale.data(), d.base.data()};
    a.norm = d.norm.data(), a.x = d.x.data(), a.pre_out = d.pre_out.data();
    a.post = d.post.data(), a.comb = d.comb.data();
    cuda::hc_collapse(h.cuda(), step, a);
  });
  time("hc_expand", r * 9 * 10240, [&](T& d) {
    cuda::hc_expand(h.cuda(), step, {T::kDim, T::kCopies, d.y.data(), d.post.data(), d.comb.data(), d.h.data()});
  });
  time("mean_copies", r * 5 * 10240, [&](T& d) {
    cuda::mean_copies(h.cuda(), step, {T::kDim, T::kCopies, d.h.data(), d.x.data(), T::kDim});
  });
}

int run(int argc, char** argv) {
  Harness h("stream", argc, argv, int64_t{1} << 30);
  const std::vector<TestStep> steps = test_steps(h.small());
  if (h.wants("embed")) {
    for (const TestStep& step : steps) {
      for (const bool replaced : {false, true}) {
        check_embed(h, step, 5120, 4, replaced);
        check_embed(h, step, 20, 3, replaced);
      }
    }
  }
  for (const Rows kind : kAllRows) {
    if (h.wants("hc_collapse")) {
      for (const int64_t rows :
           h.small() ? std::vector<int64_t>{0, 1, 19} : std::vector<int64_t>{0, 1, 2, 17, 64, 130}) {
        check_collapse(h, rows, 5120, 4, kind);
        check_collapse(h, rows, 128, 4, kind);
        check_collapse(h, rows, 1120, 4, kind);
        check_collapse(h, rows, 40, 4, kind);
        check_collapse(h, rows, 64, 2, kind);
      }
      if (!h.small()) check_collapse(h, 1059, 5120, 4, kind);  // past the limit of the spread units
      if (!h.small()) check_collapse(h, 1600, 128, 4, kind);
    }
    if (h.wants("hc_expand")) {
      for (const int64_t rows : {0, 1, 33}) {
        check_expand(h, rows, 5120, 4, kind);
        check_expand(h, rows, 20, 4, kind);
        check_expand(h, rows, 64, 3, kind);
      }
    }
  }
  if (h.wants("head")) {
    check_head(h, 5, 0, 128, 4, 512);
    check_head(h, 5, 1, 128, 4, 512);
    check_head(h, 70, 66, 128, 4, 512);
    check_head(h, 9, 3, 5120, 4, 1000);
  }
  if (h.wants("commit")) {
    for (const TestStep& step : steps) {
      check_commit(h, step, 16, 64);
      check_commit(h, step, 128, 512);
    }
  }
  if (h.timing()) {
    for (const int64_t rows : {4096, 512, 64}) time_stream(h, rows);
  }
  return h.finish();
}

}  // namespace

}  // namespace mdi::check

int main(int argc, char** argv) { return mdi::check::guarded(mdi::check::run, argc, argv); }
