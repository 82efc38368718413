// The kernels that do not depend on a cell, for every instruction set.
#include "targets.h"
// After targets.h:
#include "convert-inl.h"
#include "cpu/work/kernel.h"
#include "cpu/work/live_rows.h"
#include "elements-inl.h"
#include "product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vkrnn::cpu::HWY_NAMESPACE {
namespace {

// The least work for each thread: about 20 us, and kContendedWorth times as much under contention.
constexpr double kWorthAThread = 1e6;  // multiplications and additions in products
constexpr double kBytesWorthAThread = 128 << 10;
constexpr double kContendedWorth = 50;

unsigned threads_for(double work, double worth, unsigned most) {
    if (contended()) worth *= kContendedWorth;
    return static_cast<unsigned>(std::clamp(work / worth, 1.0, static_cast<double>(most)));
}

template <class Work, void (*Run)(const Work&, Member&)>
void run(const std::byte* work, const std::uint32_t* /*constants*/, Member& member) {
    Run(*reinterpret_cast<const Work*>(work), member);
}

unsigned product_threads(const std::byte* bytes, const std::uint32_t* /*constants*/, unsigned most) {
    const auto& work = *reinterpret_cast<const ProductWork*>(bytes);
    return threads_for(2.0 * static_cast<double>(work.m * work.n) * static_cast<double>(work.k * work.batches),
                       kWorthAThread, most);
}

// The kernel runs on one thread, however many the other kernels want.
unsigned one_thread(const std::byte* /*work*/, const std::uint32_t* /*constants*/, unsigned /*most*/) { return 1; }

unsigned pack_threads(const std::byte* bytes, const std::uint32_t* /*constants*/, unsigned most) {
    const auto& work = *reinterpret_cast<const PackWork*>(bytes);
    return threads_for(sizeof(float) * static_cast<double>(work.n * work.k * work.batches), kBytesWorthAThread, most);
}

unsigned sum_threads(const std::byte* bytes, const std::uint32_t* /*constants*/, unsigned most) {
    const auto& work = *reinterpret_cast<const SumWork*>(bytes);
    return threads_for(sizeof(float) * static_cast<double>(work.rows * work.width * work.gates * work.directions),
                       kBytesWorthAThread, most);
}

unsigned convert_threads(const std::byte* bytes, const std::uint32_t* /*constants*/, unsigned most) {
    const auto& work = *reinterpret_cast<const ConvertWork*>(bytes);
    return threads_for(sizeof(float) * static_cast<double>(work.count), kBytesWorthAThread, most);
}

unsigned copy_threads(const std::byte* bytes, const std::uint32_t* /*constants*/, unsigned most) {
    const auto& work = *reinterpret_cast<const CopyRowsWork*>(bytes);
    return threads_for(sizeof(float) * static_cast<double>(work.rows * work.width), kBytesWorthAThread, most);
}

unsigned combine_threads(const std::byte* bytes, const std::uint32_t* /*constants*/, unsigned most) {
    const auto& work = *reinterpret_cast<const CombineWork*>(bytes);
    return threads_for(sizeof(float) * static_cast<double>(work.count), kBytesWorthAThread, most);
}

}  // namespace

std::span<const NamedKernel> product_kernels() {
    static constexpr NamedKernel kKernels[] = {
        {"order_rows", &run<OrderWork, &order_rows>, &one_thread},
        {"order_rows_f64", &run<OrderWork, &order_rows>, &one_thread},
        {"pack", &run<PackWork, &pack<float>>, &pack_threads},
        {"pack_f64", &run<PackWork, &pack<double>>, &pack_threads},
        {"product", &run<ProductWork, &product<float>>, &product_threads},
        {"product_f64", &run<ProductWork, &product<double>>, &product_threads},
        {"sum_rows", &run<SumWork, &sum_rows<float>>, &sum_threads},
        {"sum_rows_f64", &run<SumWork, &sum_rows<double>>, &sum_threads},
        {"last_rows", &run<LastRowsWork, &last_rows<float>>, &one_thread},
        {"last_rows_f64", &run<LastRowsWork, &last_rows<double>>, &one_thread},
        {"copy_rows", &run<CopyRowsWork, &copy_rows<float>>, &copy_threads},
        {"copy_rows_f64", &run<CopyRowsWork, &copy_rows<double>>, &copy_threads},
        {"combine", &run<CombineWork, &combine<float>>, &combine_threads},
        {"combine_f64", &run<CombineWork, &combine<double>>, &combine_threads},
        {"convert", &run<ConvertWork, &convert>, &convert_threads},
        {"factors", &run<ConvertWork, &factors<float>>, &convert_threads},
        {"factors_f64", &run<ConvertWork, &factors<double>>, &convert_threads},
    };
    return kKernels;
}

std::uint32_t float_lanes() { return static_cast<std::uint32_t>(kLanes<float>); }

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
