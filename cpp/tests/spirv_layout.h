// Reads the offsets of struct members and the calls of functions from a SPIR-V module.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace vkrnn::test {

struct Member {
    std::string name;
    std::uint64_t offset = 0, bytes = 0;
    bool operator==(const Member&) const = default;
};

// A struct in memory.
struct Layout {
    std::string name;
    std::vector<Member> members;
    bool operator==(const Layout&) const = default;
};

class Module {
public:
    explicit Module(std::span<const std::uint32_t> words) {
        constexpr std::size_t kHeader = 5;  // words before the first instruction
        for (std::size_t at = kHeader; at < words.size(); at += words[at] >> 16) {
            if (words[at] >> 16 == 0) throw std::runtime_error("an instruction of no words");
            read(words[at] & 0xffff, words.subspan(at + 1, (words[at] >> 16) - 1));
        }
    }

    // Every struct whose members have offsets. glslang adds copies without offsets for variables.
    [[nodiscard]] std::vector<Layout> layouts() const {
        std::vector<Layout> all;
        for (const auto& [id, members] : structs_) {
            if (offsets_.contains(id)) all.push_back(layout(id));
        }
        return all;
    }

    // The struct of the push constants, which is the only member of their block. Empty if there are no push constants.
    [[nodiscard]] std::optional<Layout> push_constants() const {
        if (!push_pointer_) return std::nullopt;
        const auto& members = structs_.at(pointees_.at(*push_pointer_));
        if (members.size() != 1)
            throw std::runtime_error("a block of push constants that is no struct of an abi header");
        return layout(members[0]);
    }

    // How deeply calls nest: 0 if main calls nothing.
    [[nodiscard]] int call_depth() const { return depth_of(main_); }

private:
    using Id = std::uint32_t;
    using Words = std::span<const std::uint32_t>;

    // Numbers of the SPIR-V specification.
    enum Instruction : std::uint32_t {
        kName = 5,
        kMemberName = 6,
        kEntryPoint = 15,
        kTypeInt = 21,
        kTypeFloat = 22,
        kTypeArray = 28,
        kTypeStruct = 30,
        kTypePointer = 32,
        kConstant = 43,
        kFunction = 54,
        kFunctionCall = 57,
        kVariable = 59,
        kDecorate = 71,
        kMemberDecorate = 72,
    };
    static constexpr std::uint32_t kArrayStride = 6, kOffset = 35, kPushConstant = 9;

    static std::string text(Words words) {
        std::string result;
        for (const std::uint32_t word : words) {
            for (unsigned shift = 0; shift < 32; shift += 8) {
                const char letter = static_cast<char>(word >> shift & 0xff);
                if (letter == '\0') return result;
                result += letter;
            }
        }
        return result;
    }

    void read(std::uint32_t instruction, Words words) {
        switch (instruction) {
            case kName: names_[words[0]] = text(words.subspan(1)); break;
            case kMemberName: member_names_[words[0]][words[1]] = text(words.subspan(2)); break;
            case kEntryPoint: main_ = words[1]; break;
            case kFunction: calls_[function_ = words[1]]; break;
            case kFunctionCall: calls_[function_].insert(words[2]); break;
            case kTypeInt:
            case kTypeFloat: scalars_[words[0]] = words[1] / 8; break;
            case kTypeArray: arrays_[words[0]] = words[2]; break;
            case kTypeStruct: structs_[words[0]] = {words.begin() + 1, words.end()}; break;
            case kTypePointer: pointees_[words[0]] = words[2]; break;
            case kConstant: constants_[words[1]] = words[2]; break;
            case kVariable:
                if (words[2] == kPushConstant) push_pointer_ = words[0];
                break;
            case kDecorate:
                if (words[1] == kArrayStride) array_strides_[words[0]] = words[2];
                break;
            case kMemberDecorate:
                if (words[2] == kOffset) offsets_[words[0]][words[1]] = words[3];
                break;
            default: break;
        }
    }

    [[nodiscard]] int depth_of(Id function) const {
        int depth = 0;
        for (const Id called : calls_.at(function)) depth = std::max(depth, 1 + depth_of(called));
        return depth;
    }

    [[nodiscard]] std::uint64_t bytes(Id type) const {
        if (const auto scalar = scalars_.find(type); scalar != scalars_.end()) return scalar->second;
        if (const auto array = arrays_.find(type); array != arrays_.end()) {
            return std::uint64_t{constants_.at(array->second)} * array_strides_.at(type);
        }
        const std::vector<Member> members = layout(type).members;
        return members.empty() ? 0 : members.back().offset + members.back().bytes;
    }

    // Sizes of types other than numbers, arrays and structs are unknown; the abi headers have none.
    [[nodiscard]] std::uint64_t bytes_or_zero(Id type) const {
        const bool known = scalars_.contains(type) || structs_.contains(type) ||
                           (arrays_.contains(type) && array_strides_.contains(type));
        return known ? bytes(type) : 0;
    }

    [[nodiscard]] Layout layout(Id type) const {
        Layout result{names_.contains(type) ? names_.at(type) : "", {}};
        const auto& members = structs_.at(type);
        for (std::uint32_t i = 0; i < members.size(); ++i) {
            result.members.push_back(
                {member_names_.at(type).at(i), offsets_.at(type).at(i), bytes_or_zero(members[i])});
        }
        return result;
    }

    std::map<Id, std::string> names_;
    std::map<Id, std::map<std::uint32_t, std::string>> member_names_;
    std::map<Id, std::map<std::uint32_t, std::uint64_t>> offsets_;
    std::map<Id, std::uint64_t> scalars_;        // bytes
    std::map<Id, Id> arrays_;                    // the constant that is the length
    std::map<Id, std::uint64_t> array_strides_;  // bytes
    std::map<Id, std::vector<Id>> structs_;      // types of the members
    std::map<Id, Id> pointees_;
    std::map<Id, std::uint32_t> constants_;
    std::optional<Id> push_pointer_;
    std::map<Id, std::set<Id>> calls_;  // of each function
    Id main_ = 0, function_ = 0;        // the latter is the function that is read
};

}  // namespace vkrnn::test
