// What is said when something goes wrong on the GPU: the kernel, its shape, the file and the line. The last check ends
// this process' use of the device, so that it stands alone: an error inside a kernel cannot be recovered from.
#include <cstdlib>
#include <functional>

#include "harness.h"
#include "kernels/cuda/stages.h"
#include "kernels/cuda/tensor_map.h"
#include "random_data.h"

namespace mdi::check {

namespace {

__global__ void idle_kernel() {}
__global__ void trap_kernel(int* out) {
  if (out == nullptr) __trap();
}

std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// Every part must be in the message; without the path of the machine that it was built on.
void expect_parts(Harness& h, const std::string& name, const std::string& message,
                  const std::vector<std::string>& parts) {
  bool all = message.find("(/") == std::string::npos;
  for (const std::string& part : parts) all = all && message.find(part) != std::string::npos;
  h.expect(name, "", all, message);
}

int run(int argc, char** argv) {
  Harness h("errors", argc, argv, int64_t{1} << 20);
  CudaContext& context = h.cuda();
  // The sanitizer counts what is refused on purpose: nothing to run under it but what the runtime does not see.
  if (!h.small()) {
    expect_parts(h, "a launch that is refused", message_of([&] {
                   idle_kernel<<<1, 4096, 0, context.stream>>>();
                   MDI_CUDA_LAUNCHED(context, "idle [1, 4096]");
                 }),
                 {"cuda: idle [1, 4096]", "tests/cuda/errors_check.cu:", "invalid"});
    h.expect("the next launch is not blamed", "", message_of([&] {
                                                    idle_kernel<<<1, 32, 0, context.stream>>>();
                                                    MDI_CUDA_LAUNCHED(context, "idle [1, 32]");
                                                  }) == "no error");
    expect_parts(h, "memory that is not there", message_of([&] { context.ops->allocate(context, int64_t{1} << 50); }),
                 {"device memory: cannot allocate 1125899906842624 bytes", "are free"});
    expect_parts(h, "a tensor map that is refused", message_of([&] {
                   CUtensorMap map;
                   cuda::tensor_map(map, reinterpret_cast<const void*>(8), 2, 8, 8, 16, 8, 8, cuda::BoxSwizzle::kNone);
                 }),
                 {"cuda tensor map: the driver refused [8, 8] of 2-byte elements", "boxes [8, 8]"});
  }
  expect_parts(h, "a workspace that is too small", message_of([&] {
                 const cuda::WorkspaceScope scope(context);
                 context.workspace.take<float>(int64_t{1} << 20, "rows of a test");
               }),
               {"cuda workspace: rows of a test needs 4194304 bytes, 1048576 of 1048576 are free"});
  expect_parts(h, "a GPU that is not there", message_of([] { find_cuda_device(99); }),
               {"GPU 99: expected a number below"});
  expect_parts(h, "a stage that cannot run", message_of([&] {
                 StepView step;
                 step.rows = 1;
                 RouteArgs args;
                 args.experts = 2000, args.topk = 6;
                 cuda::route(context, step, args);
               }),
               {"cuda route: cannot choose 6 of 2000 experts"});
  if (!h.small()) {
    context.synchronous = true;  // MDI_CUDA_SYNC
    const std::string message = message_of([&] {
      trap_kernel<<<1, 32, 0, context.stream>>>(nullptr);
      MDI_CUDA_LAUNCHED(context, "trap [1, 32]");
    });
    bool right = true;
    for (const char* part : {"cuda: trap [1, 32]", "tests/cuda/errors_check.cu:"}) {
      right = right && message.find(part) != std::string::npos;
    }
    std::printf("%-4s %-28s %s\n", right ? "PASS" : "FAIL", "an error inside a kernel", message.c_str());
    if (!right) return 1;
  }
  return h.finish();
}

}  // namespace

}  // namespace mdi::check

int main(int argc, char** argv) { return mdi::check::guarded(mdi::check::run, argc, argv); }
