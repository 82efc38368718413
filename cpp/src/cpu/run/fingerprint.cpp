#include "vkrnn/fingerprint.h"

#include <algorithm>
#include <atomic>

#include "base/lazy.h"
#include "cpu/threads/team.h"
#include "cpu/work/hash.h"
#include "cpu/work/split.h"
#include "vkrnn/error.h"

namespace vkrnn {
namespace {

// The unit that threads share. With a multiple of 64, vectors of aligned arrays stay within cache lines.
constexpr std::size_t kChunk = 64 << 10;
// The least work for each thread: about 20 us.
constexpr std::uint64_t kBytesWorthAThread = 1 << 20;

cpu::HashFunction hash_function() {
    static constinit Lazy<cpu::HashFunction> function;
    return function.get([] { return cpu::find_hash(cpu::chosen_target()); });
}

unsigned threads_for(std::uint64_t bytes) {
    const std::uint64_t worth = bytes / kBytesWorthAThread;
    if (worth < 2 || cpu::contended()) return 1;
    try {
        return static_cast<unsigned>(std::min<std::uint64_t>(worth, cpu::allowed_threads()));
    } catch (const DeviceError&) {  // the call that follows reports it
        return 1;
    }
}

}  // namespace

Fingerprint::Fingerprint(std::span<const std::span<const std::byte>> arrays) {
    for (std::span<const std::byte> array : arrays) {
        bytes_ += array.size();
        for (; !array.empty(); array = array.subspan(chunks_.back().bytes.size()))
            chunks_.push_back({array.first(std::min(array.size(), kChunk)), {}});
    }
    const cpu::HashFunction hash = hash_function();
    share([&](unsigned part, unsigned parts) {
        const auto [begin, end] = cpu::part_of(static_cast<std::int64_t>(chunks_.size()), part, parts);
        for (Chunk& chunk : std::span(chunks_).subspan(begin, end - begin)) chunk.hash = hash(chunk.bytes);
    });
}

bool Fingerprint::unchanged() const {
    std::atomic<bool> same = true;
    share([&](unsigned part, unsigned parts) {
        if (!unchanged(part, parts)) same = false;
    });
    return same;
}

bool Fingerprint::unchanged(unsigned part, unsigned parts) const {
    const cpu::HashFunction hash = hash_function();
    const auto [begin, end] = cpu::part_of(static_cast<std::int64_t>(chunks_.size()), part, parts);
    return std::ranges::all_of(std::span(chunks_).subspan(begin, end - begin),
                               [&](const Chunk& chunk) { return hash(chunk.bytes) == chunk.hash; });
}

void Fingerprint::share(const std::function<void(unsigned part, unsigned parts)>& work) const {
    const unsigned threads = threads_for(bytes_);
    if (threads == 1) return work(0, 1);
    cpu::run_on_team(threads, {}, [&](cpu::Member& member) { work(member.rank(), member.size()); });
}

}  // namespace vkrnn
