// A layer as the caller gives it to a network or a stream.
#pragma once

#include <map>

#include "vkrnn/cells.h"
#include "vkrnn/descriptor.h"
#include "vkrnn/dtype.h"
#include "vkrnn/spec.h"

namespace vkrnn {

// A C-contiguous weight in host memory.
struct HostTensor {
    const void* data = nullptr;
    TensorShape shape;
    Dtype dtype = Dtype::float32;
};

// A recurrent layer: its options and its weights. The weights are all arguments of a call except the source, initial
// states, mask and lengths. Networks and streams copy them when they are constructed.
struct NetworkLayer {
    Descriptor descriptor;
    std::map<Argument, HostTensor> weights;
};

}  // namespace vkrnn
