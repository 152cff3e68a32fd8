// Ops::record with CUDA: what is put on the stream is captured into a graph, and a graph is launched with one call.
#pragma once

#include <functional>

#include "kernels/cuda/context.h"

namespace mdi::cuda {

// Ready to launch when it returns: instantiated, and uploaded to the device. Other threads may use the runtime
// meanwhile.
void* record_graph(Context& context, const std::function<void()>& work);
void launch_graph(Context& context, void* recorded);
void release_graph(Context& context, void* recorded);  // waits for the stream

}  // namespace mdi::cuda
