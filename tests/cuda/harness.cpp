#include "harness.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace mdi::check {

namespace {

double bf16_ulp(double v) {
  const double a = std::fabs(v);
  if (a < 0x1p-126) return 0x1p-133;
  return std::ldexp(1.0, std::ilogb(a) - 7);
}

double row_rms(const std::vector<double>& v, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) {
    if (std::isfinite(v[i])) sum += v[i] * v[i];
  }
  return std::sqrt(sum / static_cast<double>(end - begin));
}

}  // namespace

Comparison compare_values(const std::vector<double>& got, const std::vector<double>& want, int64_t columns,
                          Tolerance tolerance) {
  if (got.size() != want.size()) throw Error("check", "arrays of different sizes");
  Comparison c;
  c.tolerance = tolerance;
  c.elements = static_cast<int64_t>(want.size());
  const auto width = static_cast<size_t>(columns);
  double sum = 0;
  for (size_t begin = 0; begin < want.size(); begin += width) {
    const size_t end = std::min(begin + width, want.size());
    const double rms = row_rms(want, begin, end);
    for (size_t i = begin; i < end; ++i) {
      const bool both_nan = std::isnan(got[i]) && std::isnan(want[i]);
      if (both_nan || got[i] == want[i]) continue;
      const double difference = std::fabs(got[i] - want[i]);
      const bool passes = difference <= tolerance.ulps * bf16_ulp(want[i]) + tolerance.row * rms;  // false for NaN
      if (!passes) {
        if (c.first < 0) {
          c.first = static_cast<int64_t>(i);
          c.got = got[i];
          c.want = want[i];
        }
        ++c.wrong;
      }
      const double relative = rms > 0 ? difference / rms : difference;
      if (std::isfinite(relative)) {
        c.max = std::max(c.max, relative);
        sum += relative;
      }
    }
  }
  c.mean = want.empty() ? 0 : sum / static_cast<double>(want.size());
  c.passed = c.wrong == 0;
  return c;
}

Harness::Harness(const char* area, int argc, char** argv, int64_t workspace_bytes) : area_(area) {
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--time" || option == "--times") {
      time_ = true;
      times_alone_ = option == "--times";
    } else if (option == "--small") {
      small_ = true;
    } else if (option == "--only" && i + 1 < argc) {
      only_.emplace_back(argv[++i]);
    } else {
      std::fprintf(stderr, "%s: --time, --times, --small, --only NAME; not '%s'\n", area, option.c_str());
      std::exit(2);
    }
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  cuda_ = make_cuda_context(0, workspace_bytes);
  cpu_ = make_cpu_context(0);
  cudaDeviceProp properties{};
  MDI_CUDA(cudaGetDeviceProperties(&properties, 0));
  std::printf("# %s on %s, %d multiprocessors, %.1f GB\n", area, properties.name, properties.multiProcessorCount,
              static_cast<double>(properties.totalGlobalMem) * 1e-9);
}

bool Harness::wants(const std::string& name) const {
  if (times_alone_ && checking_) return false;
  return only_.empty() || std::any_of(only_.begin(), only_.end(),
                                      [&](const std::string& o) { return name.find(o) != std::string::npos; });
}

void Harness::report(const std::string& name, const std::string& shape, Comparison c) {
  const cudaError_t status = cudaDeviceSynchronize();
  if (status != cudaSuccess) {
    c.passed = false;
    c.note += std::string(" ") + cudaGetErrorString(status);
  }
  ++checks_;
  if (!c.passed) ++failed_;
  std::printf("%-4s %-28s %-44s max %.2e mean %.2e tol %.3g ulp + %.2e%s", c.passed ? "PASS" : "FAIL", name.c_str(),
              shape.c_str(), c.max, c.mean, c.tolerance.ulps, c.tolerance.row, c.note.c_str());
  if (c.first >= 0) {
    std::printf(" | %lld of %lld differ, first [%lld] got %.9g want %.9g", static_cast<long long>(c.wrong),
                static_cast<long long>(c.elements), static_cast<long long>(c.first), c.got, c.want);
  }
  std::printf("\n");
  // After an error inside a kernel nothing on this device works any more.
  if (status != cudaSuccess) std::exit(1);
}

void Harness::expect(const std::string& name, const std::string& shape, bool passed, const std::string& note) {
  Comparison c;
  c.passed = passed;
  c.note = note.empty() ? "" : " " + note;
  report(name, shape, c);
}

double Harness::time(const std::string& name, const std::string& shape, const Work& work,
                     const std::function<void(int)>& launch, int sets) {
  if (!time_ || !wants(name)) return 0;
  cudaStream_t stream = cuda_->stream;
  for (int set = 0; set < sets; ++set) launch(set);
  MDI_CUDA(cudaStreamSynchronize(stream));
  // One run, to size a batch of about 4 ms: a launch gap then counts for little, and the batch is one graph.
  cudaEvent_t begin = nullptr, end = nullptr;
  MDI_CUDA(cudaEventCreate(&begin));
  MDI_CUDA(cudaEventCreate(&end));
  const auto elapsed = [&](const std::function<void()>& work_of) {
    MDI_CUDA(cudaEventRecord(begin, stream));
    work_of();
    MDI_CUDA(cudaEventRecord(end, stream));
    MDI_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    MDI_CUDA(cudaEventElapsedTime(&ms, begin, end));
    return static_cast<double>(ms);
  };
  const double once = elapsed([&] { launch(0); });
  const int rounds = std::clamp(static_cast<int>(4.0 / (once * sets)), 1, 64);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t batch = nullptr;
  MDI_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int r = 0; r < rounds; ++r) {
    for (int set = 0; set < sets; ++set) launch(set);
  }
  MDI_CUDA(cudaStreamEndCapture(stream, &graph));
  MDI_CUDA(cudaGraphInstantiate(&batch, graph, 0));
  const auto run = [&] { MDI_CUDA(cudaGraphLaunch(batch, stream)); };
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  for (const double until = now() + 0.4; now() < until;) elapsed(run);
  std::vector<double> all;
  for (const double until = now() + 0.3; all.size() < 20 || now() < until;) all.push_back(elapsed(run));
  std::nth_element(all.begin(), all.begin() + static_cast<ptrdiff_t>(all.size() / 2), all.end());
  const double ms = all[all.size() / 2] / (rounds * sets);
  // Tabs, so that a script can take it apart.
  std::printf("TIME %-28s\t%-44s\t%9.4f ms\t%8.1f TFLOP/s\t%8.1f GB/s\tfloor %.4f\t%.0f%%\n", name.c_str(),
              shape.c_str(), ms, work.flops / ms * 1e-9, work.bytes / ms * 1e-6, work.floor_ms(),
              100 * work.floor_ms() / ms);
  MDI_CUDA(cudaGraphExecDestroy(batch));
  MDI_CUDA(cudaGraphDestroy(graph));
  MDI_CUDA(cudaEventDestroy(begin));
  MDI_CUDA(cudaEventDestroy(end));
  return ms;
}

int Harness::finish() {
  std::printf("# %s: %d checks, %d failed\n", area_.c_str(), checks_, failed_);
  return failed_ == 0 ? 0 : 1;
}

int guarded(int (*run)(int argc, char** argv), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

}  // namespace mdi::check
