// A backend with time marks (kernels/ops.h), made of one without: its clock ticks once for each operation and once for
// each mark, so what a stage takes is a number that is known. It says that its work is done when it is told to.
#pragma once

#include <vector>

#include "../model/step_ops.h"
#include "kernels/ops.h"
#include "kernels/sample.h"

namespace mdi::testing {

// In force for a context while it lives; one at a time.
class TickingOps {
 public:
  explicit TickingOps(Context& context) : context_(context), plain_(context.ops), table_(*context.ops) {
    current() = this;
    for_each_step_op([this]<auto kOp, class Args>() { this->template wrap<kOp, Args>(); });
    table_.make_mark = table_.make_time_mark = [](Context&) -> void* {
      ++current()->marks_made;
      ++current()->marks_there;
      return new int64_t{0};
    };
    table_.release_mark = [](Context&, void* mark) {
      --current()->marks_there;
      delete static_cast<int64_t*>(mark);
    };
    table_.set_mark = [](Context&, void* mark) { *static_cast<int64_t*>(mark) = ++current()->ticks; };
    table_.wait_mark = [](Context&, void*) {};
    table_.passed_mark = [](Context&, void*) { return current()->done; };
    table_.seconds_between = [](Context&, void* from, void* to) {
      return static_cast<double>(*static_cast<int64_t*>(to) - *static_cast<int64_t*>(from));
    };
    context.ops = &table_;
  }
  ~TickingOps() { context_.ops = plain_; }
  TickingOps(const TickingOps&) = delete;
  TickingOps& operator=(const TickingOps&) = delete;

  int64_t ticks = 0, marks_made = 0, marks_there = 0;
  bool done = true;

 private:
  static TickingOps*& current() {
    static TickingOps* ops = nullptr;
    return ops;
  }
  template <auto kOp, class Args>
  void wrap() {
    table_.*kOp = [](Context& c, const StepView& step, const Args& args) {
      ++current()->ticks;
      (current()->plain_->*kOp)(c, step, args);
    };
  }

  Context& context_;
  const Ops* plain_;
  Ops table_;
};

}  // namespace mdi::testing
