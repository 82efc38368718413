#include "cuda/kernels/modules.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "plan/library_product.h"
#include "run/poll.h"
#include "vkrnn/error.h"
#include "vkrnn/poll_interval.h"

namespace vkrnn::cuda {
namespace {

using Clock = std::chrono::steady_clock;

// NVRTC takes a second at most for a kernel. A version whose optimizer does not end on a kernel was seen.
constexpr auto kMostTime = std::chrono::minutes(2);

// Kernels that several threads compile. The threads share the object, so a compilation that never ends keeps it alive.
class Batch {
public:
    Batch(std::shared_ptr<const Compiler> compiler, std::vector<Kernel> kernels)
        : compiler_(std::move(compiler)), kernels_(std::move(kernels)), cubins_(kernels_.size()) {}

    // The body of a thread.
    void work() {
        std::unique_lock lock(mutex_);
        while (next_ < kernels_.size()) {
            const std::size_t at = next_++;
            ++running_;
            lock.unlock();
            std::vector<std::byte> cubin;
            std::exception_ptr error;
            try {
                cubin = compiler_->compile(kernels_[at]);
            } catch (...) {
                error = std::current_exception();
            }
            lock.lock();
            --running_;
            cubins_[at] = std::move(cubin);
            if (error) {
                error_ = error;
                next_ = kernels_.size();  // the others are not needed
            }
            changed_.notify_all();
        }
    }

    // Returns the kernels' code once all threads are done.
    std::vector<std::vector<std::byte>> wait(const std::string& prefix, const Poll& poll) {
        const auto start = Clock::now();
        std::unique_lock lock(mutex_);
        while (running_ > 0 || next_ < kernels_.size()) {
            changed_.wait_for(lock, poll_interval.load());
            lock.unlock();
            std::exception_ptr interrupted;
            try {
                ask(poll);
            } catch (const Interrupted&) {
                interrupted = std::current_exception();
            }
            lock.lock();
            if (interrupted && !error_) {
                error_ = interrupted;  // thrown once the running compilations are done
                next_ = kernels_.size();
            }
            if (Clock::now() - start > kMostTime) {
                next_ = kernels_.size();
                throw DeviceError(prefix + compiler_->name() +
                                  " did not compile the kernels within two minutes; another version of it, named in "
                                  "VKRNN_NVRTC, may");
            }
        }
        if (error_) std::rethrow_exception(error_);
        return std::move(cubins_);
    }

private:
    const std::shared_ptr<const Compiler> compiler_;
    const std::vector<Kernel> kernels_;
    std::mutex mutex_;  // guards the members below
    std::condition_variable changed_;
    std::vector<std::vector<std::byte>> cubins_;
    std::size_t next_ = 0, running_ = 0;
    std::exception_ptr error_;
};

}  // namespace

Modules::~Modules() {
    const Functions* const cu = driver_to_clean_up();
    for (const Module module : modules_)
        if (cu != nullptr) cu->ModuleUnload(module);
}

std::vector<LoadedKernel> Modules::get(const std::vector<Kernel>& kernels, const std::string& prefix,
                                       const Poll& poll) {
    std::vector<LoadedKernel> found;
    std::vector<Kernel> missing;
    {
        const std::lock_guard lock(mutex_);
        for (const Kernel& kernel : kernels) {
            if (is_library_product(kernel)) {
                found.emplace_back();
                continue;
            }
            const auto at = loaded_.find(kernel);
            if (at != loaded_.end())
                found.push_back(at->second);
            else
                missing.push_back(kernel);
        }
    }
    if (missing.empty()) return found;
    const auto batch = std::make_shared<Batch>(compiler_, missing);
    const std::size_t threads =
        std::min<std::size_t>(missing.size(), std::max(1U, std::thread::hardware_concurrency()));
    for (std::size_t i = 0; i < threads; ++i) std::thread([batch] { batch->work(); }).detach();
    const std::vector<std::vector<std::byte>> cubins = batch->wait(prefix, poll);
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < missing.size(); ++i)
        if (!loaded_.contains(missing[i])) loaded_.emplace(missing[i], load(missing[i], cubins[i]));
    found.clear();
    for (const Kernel& kernel : kernels)
        found.push_back(is_library_product(kernel) ? LoadedKernel{} : loaded_.at(kernel));
    return found;
}

LoadedKernel Modules::load(const Kernel& kernel, const std::vector<std::byte>& cubin) {
    const Functions& cu = driver();
    Module module{};
    check(cu.ModuleLoadData(&module, cubin.data()));
    modules_.push_back(module);
    LoadedKernel loaded;
    check(cu.ModuleGetFunction(&loaded.function, module, entry_name(kernel).c_str()));
    // The kernel declares its workgroup as the most threads that it is launched with.
    int threads = 0;
    check(cu.FuncGetAttribute(&threads, FunctionAttribute::max_threads_per_block, loaded.function));
    loaded.threads = static_cast<unsigned>(threads);
    int declared = 0;
    check(cu.FuncGetAttribute(&declared, FunctionAttribute::shared_memory, loaded.function));
    check(cu.FuncSetAttribute(loaded.function, FunctionAttribute::max_launch_shared_memory,
                              max_shared_memory_ - declared));
    return loaded;
}

std::size_t Modules::size() const {
    const std::lock_guard lock(mutex_);
    return loaded_.size();
}

}  // namespace vkrnn::cuda
