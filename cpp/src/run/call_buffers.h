// The buffers of a plan in one call, by rules that hold on every device: which operands kernels can access, which
// prepacked copies exist and which the call makes, and how its other buffers share memory. Back ends allocate memory,
// copy to it and order its uses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "plan/scratch.h"
#include "run/prepacked_copies.h"
#include "vkrnn/device.h"

namespace vkrnn {

// Throws std::invalid_argument or std::out_of_range if the plan has other operands, or one extends beyond its storage.
void check_operands(const Plan& plan, std::span<const InputLocation> inputs, std::span<const ResultLocation> results);

// Returns whether kernels of a GPU can access an operand at this address. `written`: the bytes of a result.
constexpr bool suits_kernels(std::uint64_t address, std::uint64_t alignment, std::uint64_t written = 0) {
    constexpr std::uint64_t kWordBytes = 4;  // two elements of a 16-bit type, which kernels store together
    return address % alignment == 0 && written % kWordBytes == 0;
}

// Returns whether a step only fills a buffer that is full, and so is left out.
inline bool is_left_out(std::span<const std::size_t> full, std::size_t fills) {
    return std::ranges::find(full, fills) != full.end();
}

// `Array` is a back end's Storage. Its copies() are PrepackedCopies<Copy>, and its prepacked_version() is the version
// of the contents that they may be made from.
template <class Array, class Copy>
class CallBuffers {
public:
    // A prepacked buffer, and the copy that the call uses for it.
    struct Prepacked {
        std::size_t buffer;
        std::shared_ptr<const Copy> copy;
    };

    explicit CallBuffers(const Plan& plan) : plan_(plan) {}

    // Finds the prepacked copies of arrays.
    void find_prepacked(std::span<const InputLocation> inputs) {
        for (std::size_t buffer = 0; buffer < plan_.buffers.size(); ++buffer) {
            const auto& [of, layout, optional] = plan_.buffers[buffer].prepacking;
            if (plan_.buffers[buffer].role != Role::prepacked) continue;
            std::size_t i = 0;
            while (plan_.inputs.at(i).second != of) ++i;
            auto* const array = dynamic_cast<Array*>(inputs[i].storage.get());
            const auto version = array == nullptr ? std::nullopt : array->prepacked_version();
            if (version) {
                PrepackedKey key{inputs[i].offset, plan_.buffers[of].bytes, layout};
                if (auto copy = array->copies().find(key, version)) {
                    full_.push_back(buffer);
                    prepacked_.push_back({buffer, std::move(copy)});
                } else {
                    new_.push_back({array, std::move(key), *version, {buffer, nullptr}});
                }
            } else if (optional) {
                full_.push_back(buffer);
            }
        }
    }

    // Makes the missing copies: `make` allocates one of some bytes and of a version.
    template <class Make>
    void make_prepacked(const Make& make) {
        for (auto& [array, key, version, prepacked] : new_) {
            prepacked.copy = make(plan_.buffers[prepacked.buffer].bytes, version);
            prepacked_.push_back(prepacked);
        }
    }

    // Lays out what only this call needs: all scratch and constant buffers except some, and prepacked ones without a
    // copy.
    template <class IsExcepted>
    void lay_out(std::uint64_t alignment, std::uint64_t limit, const IsExcepted& is_excepted) {
        for (std::size_t buffer = 0; buffer < plan_.buffers.size(); ++buffer) {
            const Role role = plan_.buffers[buffer].role;
            const bool is_bound =
                role == Role::prepacked
                    ? is_left_out(full_, buffer) ||
                          std::ranges::find(prepacked_, buffer, &Prepacked::buffer) != prepacked_.end()
                    : role == Role::input || role == Role::result || role == Role::failed_waits || is_excepted(buffer);
            if (!is_bound) scratch_.push_back(buffer);
        }
        layout_ = place_scratch(plan_, scratch_, alignment, limit);
    }

    [[nodiscard]] bool has_new_copies() const { return !new_.empty(); }
    // Keeps the new copies with their arrays. Returns the copies that were dropped for them.
    [[nodiscard]] auto keep_prepacked() {
        typename PrepackedCopies<Copy>::List dropped;
        for (auto& [array, key, version, prepacked] : new_)
            dropped.splice(dropped.end(), array->copies().keep(std::move(key), std::move(prepacked.copy)));
        return dropped;
    }

    [[nodiscard]] std::span<const Prepacked> prepacked() const { return prepacked_; }
    // Returns the prepacked buffers that an earlier call filled, and those that kernels do not need.
    [[nodiscard]] std::span<const std::size_t> full() const { return full_; }
    // Return the buffers that lay_out() placed, and where.
    [[nodiscard]] std::span<const std::size_t> scratch() const { return scratch_; }
    [[nodiscard]] const ScratchLayout& layout() const { return layout_; }

private:
    // A copy that the call makes, and the array that will keep it.
    struct New {
        Array* array;
        PrepackedKey key;
        std::uint64_t version;
        Prepacked prepacked;
    };

    const Plan& plan_;
    std::vector<Prepacked> prepacked_;
    std::vector<New> new_;
    std::vector<std::size_t> full_, scratch_;
    ScratchLayout layout_;
};

}  // namespace vkrnn
