// A backend that records (kernels/ops.h, record), made of one that does not: it keeps calls with their arguments, which
// is what a graph does. So the code around recorded work is tested without a GPU.
#pragma once

#include <stdexcept>
#include <vector>

#include "kernels/ops.h"
#include "step_ops.h"

namespace mdi::testing {

// In force for a context while it lives; one at a time.
class RecordingOps {
 public:
  explicit RecordingOps(Context& context) : context_(context), plain_(context.ops), table_(*context.ops) {
    current() = this;
    for_each_step_op([this]<auto kOp, class Args>() { this->template wrap<kOp, Args>(); });
    table_.allocate = [](Context& c, int64_t bytes) {
      current()->outside("allocate");
      ++current()->allocations;
      return current()->plain_->allocate(c, bytes);
    };
    table_.copy_in = [](Context& c, void* to, const void* from, int64_t bytes) {
      current()->outside("copy_in");
      current()->plain_->copy_in(c, to, from, bytes);
    };
    table_.copy_out = [](Context& c, void* to, const void* from, int64_t bytes) {
      current()->outside("copy_out");
      current()->plain_->copy_out(c, to, from, bytes);
    };
    table_.record = [](Context&, const std::function<void()>& work) {
      auto* calls = new Calls;
      current()->recording_ = calls;
      ++current()->records;
      work();
      current()->recording_ = nullptr;
      return static_cast<void*>(calls);
    };
    table_.run_recorded = [](Context& c, void* recorded) {
      for (const auto& call : *static_cast<Calls*>(recorded)) call(c);
    };
    table_.release_recorded = [](Context&, void* recorded) { delete static_cast<Calls*>(recorded); };
    context.ops = &table_;
  }
  ~RecordingOps() { context_.ops = plain_; }
  RecordingOps(const RecordingOps&) = delete;
  RecordingOps& operator=(const RecordingOps&) = delete;

  int64_t allocations = 0, records = 0;

 private:
  using Calls = std::vector<std::function<void(Context&)>>;
  static RecordingOps*& current() {
    static RecordingOps* ops = nullptr;
    return ops;
  }
  void outside(const char* what) const {
    if (recording_ != nullptr) throw std::logic_error(std::string(what) + " is recorded");
  }
  template <auto kOp, class Args>
  void wrap() {
    table_.*kOp = [](Context& c, const StepView& step, const Args& args) {
      const auto plain = current()->plain_->*kOp;
      if (current()->recording_ == nullptr) return plain(c, step, args);
      current()->recording_->push_back([plain, step, args](Context& context) { plain(context, step, args); });
    };
  }

  Context& context_;
  const Ops* plain_;
  Ops table_;
  Calls* recording_ = nullptr;
};

}  // namespace mdi::testing
