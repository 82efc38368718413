// The sum of a layer's two biases, which PyTorch's modules have and the cells' calls do not.
#include <stdexcept>
#include <utility>

#include "cuda/biases_abi.h"
#include "cuda/run/cuda_device.h"

namespace vkrnn::cuda {
namespace {

constexpr std::uint32_t kAllTensors = 0b111;

// Returns the kernel that adds biases of a type.
const std::vector<Kernel>& biases_kernel(Dtype dtype) {
    const auto stored = [](Dtype type) {
        std::vector<std::uint32_t> constants(abi::kStored + 1);
        constants.back() = kAllTensors | (type == Dtype::bfloat16 ? 1U : 0U) << abi::kStoredBfloat;
        return std::vector{Kernel{"add_biases_16bit", std::move(constants), {}}};
    };
    static const std::vector<Kernel> float32{{"add_biases", {}, {}}}, float64{{"add_biases_f64", {}, {}}},
        float16 = stored(Dtype::float16), bfloat16 = stored(Dtype::bfloat16);
    switch (dtype) {
        case Dtype::float32: return float32;
        case Dtype::float64: return float64;
        case Dtype::float16: return float16;
        case Dtype::bfloat16: return bfloat16;
        default: throw std::invalid_argument("biases are floating-point numbers");
    }
}

}  // namespace

void CudaDevice::add(const CudaBiases& biases) {
    in_context("[biases] ", [&](Session& session, Stream stream) {
        const LoadedKernel kernel = session.modules->get(biases_kernel(biases.dtype), "[biases] ", {}).front();
        abi::AddBiasesPush push{biases.first, biases.second, biases.to, biases.count, biases.added};
        const std::uint32_t groups = (biases.count + kernel.threads - 1) / kernel.threads;
        void* parameters[] = {&push};
        check(driver().LaunchKernel(kernel.function, groups, 1, 1, kernel.threads, 1, 1, 0, stream,
                                    static_cast<void**>(parameters), nullptr));
    });
}

}  // namespace vkrnn::cuda
