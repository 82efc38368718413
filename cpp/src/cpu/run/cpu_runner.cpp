#include "cpu/run/cpu_runner.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "cpu/run/lanes.h"
#include "cpu/work/split.h"
#include "run/buffer_references.h"

namespace vkrnn::cpu {
namespace {

// Each layer runs this many steps before the next layer begins, so that its output stays in the caches.
constexpr std::int64_t kBlock = 64;

// A piece of a wavefront, and how many a block has.
constexpr std::int64_t kPieceSteps = 8;
std::size_t pieces_of(std::int64_t steps) { return static_cast<std::size_t>((steps + kPieceSteps - 1) / kPieceSteps); }

// A block with less work than this needs no poll: it takes about a millisecond at most.
constexpr double kShortFlops = 1e7;
// With kSingleSteps, a step with more work than this is not simple: more threads may be allowed later, and the caller
// may let others run meanwhile.
constexpr double kSimpleFlops = 1e6;

Address address_of(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

const std::byte* bytes_of(const auto& work) { return reinterpret_cast<const std::byte*>(&work); }

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

CpuRunner::CpuRunner(const Target& target, std::shared_ptr<Memory> memory, std::span<const StreamPart> parts,
                     std::span<const std::shared_ptr<const Plan>> plans, unsigned threads)
    : target_(target),
      memory_(std::move(memory)),
      dtype_(parts.front().spec.dtype),
      half_(is_half(dtype_)),
      convert_(find_kernel(target, "convert")),
      inputs_(parts.front().spec.N * parts.front().spec.I),
      outputs_(parts.back().spec.N * parts.back().spec.H),
      single_(threads == kSingleSteps),
      most_threads_(single_ || threads == 0 ? allowed_threads() : std::min(threads, allowed_threads())),
      layers_(parts.size()) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const Spec& spec = parts[i].spec;
        layers_[i].hidden_bytes = vkrnn::state_bytes(spec, Argument::init_state);
        if (spec.C() > 0) layers_[i].cell_bytes = vkrnn::state_bytes(spec, Argument::init_cell);
        state_bytes_ += 2 * aligned(layers_[i].hidden_bytes) + aligned(layers_[i].cell_bytes);
    }
    states_ = take(2 * state_bytes_);
    std::byte* next = states_;
    for (Layer& layer : layers_) {
        layer.hidden = next;
        layer.next_hidden = layer.hidden + aligned(layer.hidden_bytes);
        std::byte* const cell = layer.next_hidden + aligned(layer.hidden_bytes);
        layer.cell = layer.cell_bytes > 0 ? cell : nullptr;
        next = cell + aligned(layer.cell_bytes);
    }
    // A single layer needs no memory between layers, so it takes any number of steps at once.
    block_ = layers_.size() > 1 || half_ ? kBlock : std::numeric_limits<std::uint32_t>::max();
    for (std::size_t i = 0; i < parts.size(); ++i) {
        place(*plans[i], parts[i], layers_[i]);
        prepare_row_step(parts[i], layers_[i]);
        if (i + 1 < parts.size() || half_) layers_[i].output = take(kBlock * layers_[i].hidden_bytes);
        step_flops_ += plans[i]->flops;
    }
    if (half_) {
        std::uint64_t most = 0;
        for (const Layer& layer : layers_) most = std::max(most, layer.hidden_bytes);
        narrow_output_ = take(kBlock * most / 2);
        wide_input_ = take(kBlock * static_cast<std::uint64_t>(inputs_) * sizeof(float));
    }
    step_threads_ = threads_for(1, most_threads_);
    const bool have_steps = std::ranges::all_of(layers_, [](const Layer& each) { return each.step != nullptr; });
    simple_ = step_threads_ == 1 && !half_ && have_steps && (!single_ || step_flops_ < kSimpleFlops);
    if (single_ && have_steps) panels_.clear();
}

std::byte* CpuRunner::take(std::uint64_t bytes, Leases& leases) {
    leases.push_back(std::make_unique<Lease>(memory_, bytes));
    return leases.back()->data();
}

// Places the plan's buffers in memory and packs its weights. Source and output are bound later, by run().
void CpuRunner::place(const Plan& plan, const StreamPart& part, Layer& layer) {
    std::vector<std::byte*> at(plan.buffers.size(), nullptr);
    std::vector<std::unique_ptr<Lease>> originals;  // of weights that are packed below
    const auto is_prepacked = [&](std::size_t input) {
        return std::ranges::any_of(plan.buffers, [&](const PlanBuffer& buffer) {
            return buffer.role == Role::prepacked && buffer.prepacking.input == input;
        });
    };
    for (const auto& [argument, buffer] : plan.inputs) {
        if (argument == Argument::source) continue;
        if (argument == Argument::init_state || argument == Argument::init_cell) {
            at[buffer] = argument == Argument::init_state ? layer.hidden : layer.cell;
            continue;
        }
        const std::uint64_t bytes = plan.buffers[buffer].bytes;
        if (is_prepacked(buffer)) {
            originals.push_back(std::make_unique<Lease>(memory_, bytes));
            at[buffer] = originals.back()->data();
        } else {
            at[buffer] = take(bytes);
        }
        const void* const from = part.weights.at(argument);
        if (half_) {
            convert(solo_.member(), from, at[buffer], static_cast<std::int64_t>(bytes / sizeof(float)), false);
        } else {
            std::memcpy(at[buffer], from, bytes);
        }
    }
    for (std::size_t buffer = 0; buffer < at.size(); ++buffer) {
        const Role role = plan.buffers[buffer].role;
        if (role != Role::scratch && role != Role::prepacked) continue;
        at[buffer] = take(plan.buffers[buffer].bytes, role == Role::prepacked ? panels_ : leases_);
        std::memset(at[buffer], 0, plan.buffers[buffer].bytes);
    }
    for (const Step& step : plan.steps) {
        const auto* const dispatch = std::get_if<Dispatch>(&step);
        if (dispatch == nullptr) continue;  // a Clear: the memory is zero already
        const Kernel& kernel = plan.kernels[dispatch->kernel];
        const NamedKernel& named = find_kernel(target_, kernel.shader);
        std::vector<std::uint64_t> work((dispatch->push.bytes.size() + 7) / 8);
        copy_with_addresses(dispatch->push, at.size(), reinterpret_cast<std::byte*>(work.data()),
                            [&](std::size_t buffer) { return address_of(at[buffer]); });
        if (dispatch->fills != kNoBuffer) {
            named.run(reinterpret_cast<const std::byte*>(work.data()), kernel.constants.data(), solo_.member());
            continue;
        }
        if (layer.loop != nullptr || dispatch->push.bytes.size() != sizeof(LoopWork))
            throw std::logic_error("a stream's plan has more than a time loop");
        layer.loop = &named;
        layer.constants = kernel.constants;
        std::memcpy(&layer.loop_work, work.data(), sizeof(LoopWork));
    }
    // The cell state is updated in place: each unit reads only its own elements.
    abi::StepParams& params = layer.loop_work.params;
    params.at[std::size_t{2} * abi::kCell] = params.at[std::size_t{2} * abi::kInitCell];
    params.strides[abi::kCell] = params.strides[abi::kInitCell];
}

Address CpuRunner::in_step_order(const StreamPart& part, const Layer& layer, Address panels, std::int64_t depth) {
    if (panels == 0 || depth == 0) return panels;
    const std::uint64_t element = compute_bytes(dtype_);
    const std::uint64_t lanes = std::max<std::uint64_t>(1, target_.lanes * sizeof(float) / element);
    const auto gates = static_cast<std::uint64_t>(part.spec.G()), rows = static_cast<std::uint64_t>(depth);
    const std::uint64_t vectors = (static_cast<std::uint64_t>(part.spec.H) + lanes - 1) / lanes,
                        bytes = lanes * element;
    const auto* const from = reinterpret_cast<const std::byte*>(static_cast<std::uintptr_t>(panels));
    std::byte* const copy = take(gates * vectors * rows * bytes);
    std::byte* to = copy;
    for (std::uint64_t vector = 0; vector < vectors; ++vector)
        for (std::uint64_t k = 0; k < rows; ++k)
            for (std::uint64_t gate = 0; gate < gates; ++gate, to += bytes) {
                const std::uint64_t slot = layer.constants[abi::kGateOrder] >> (4 * gate) & 15U;
                std::memcpy(to, from + ((slot * vectors + vector) * rows + k) * bytes, bytes);
            }
    return address_of(copy);
}

void CpuRunner::prepare_row_step(const StreamPart& part, Layer& layer) {
    const bool heads = part.spec.heads() > 1 || part.spec.input_heads() > 1;
    if (part.spec.N != 1 || part.spec.two_phases() || heads || !part.spec.recurs()) return;
    const LoopWork& loop = layer.loop_work;
    const abi::StepParams& params = loop.params;
    layer.step_work = {.source = 0,
                       .hidden = 0,
                       .input_weights = in_step_order(part, layer, loop.input_weights[0], loop.features),
                       .weights = in_step_order(part, layer, params.weights[0], part.spec.H),
                       .bias = params.at[std::size_t{2} * abi::kBias],
                       .vectors = params.at[std::size_t{2} * abi::kVectors],
                       .hidden_before = 0,
                       .cell = address_of(layer.cell),
                       .blend = part.spec.blends_hidden() ? params.at[std::size_t{2} * abi::kBlend] : 0,
                       .blend_cell = part.spec.blends_cell() ? params.at[std::size_t{2} * abi::kBlendCell] : 0,
                       .bias_slot = params.strides[abi::kBias].slot,
                       .vectors_slot = params.strides[abi::kVectors].slot,
                       .blend_unit = params.strides[abi::kBlend].unit,
                       .blend_cell_unit = params.strides[abi::kBlendCell].unit,
                       .units = part.spec.H,
                       .features = loop.features,
                       .adds_bias = loop.adds_bias,
                       .back = 0};
    std::string name(part.spec.cell().shader);
    name += dtype_ == Dtype::float64 ? "_step_f64" : "_step";
    layer.step = &find_kernel(target_, name);
}

unsigned CpuRunner::threads_for(std::int64_t steps, unsigned most) const {
    unsigned wanted = 1;
    for (const Layer& layer : layers_) {
        LoopWork work = layer.loop_work;
        work.params.T = static_cast<std::uint32_t>(std::min(steps, block_));
        wanted = std::max(wanted, layer.loop->threads(bytes_of(work), layer.constants.data(), most));
    }
    return wanted;
}

unsigned CpuRunner::threads_now(std::int64_t steps) const {
    if (single_) return threads_for(1, allowed_threads());
    if (steps > 1) return threads_for(steps, most_threads_);
    // Under contention, several threads would wait for processors that other software uses.
    return step_threads_ > 1 && contended() ? 1 : step_threads_;
}

unsigned CpuRunner::parts_for(std::int64_t steps) const {
    // 16-bit layers share the memory in which outputs are narrowed.
    if (layers_.size() == 1 || half_ || most_threads_ == 1 || steps < 2 * kPieceSteps || contended()) return 1;
    LaneTimes times(pieces_of(std::min(steps, block_)));
    for (const Layer& layer : layers_) {
        LoopWork work = layer.loop_work;
        work.params.T = kPieceSteps;
        times.add(*layer.loop, layer.constants.data(), work);
    }
    const auto [parts, nanoseconds] = times.best_division(most_threads_, static_cast<unsigned>(layers_.size()));
    const double threads = kThread * (most_threads_ - 1);
    return threads + nanoseconds < kMostWavefrontTime * times.in_turn(most_threads_) ? parts : 1;
}

void CpuRunner::run(const void* input, void* output, std::int64_t steps, const Poll& poll) {
    const auto* const in = static_cast<const std::byte*>(input);
    auto* const out = static_cast<std::byte*>(output);
    if (steps == 1 && simple_) return run_simple_step(in, out);
    run_steps(in, out, steps, poll, {});
}

void CpuRunner::run_step(const void* input, void* output, const Poll& poll, const Share& share) {
    const auto* const in = static_cast<const std::byte*>(input);
    auto* const out = static_cast<std::byte*>(output);
    if (!simple_) return run_steps(in, out, 1, poll, share);
    share(0, 1);
    run_simple_step(in, out);
}

void CpuRunner::run_steps(const std::byte* in, std::byte* out, std::int64_t steps, const Poll& poll,
                          const Share& share) {
    for (Layer& layer : layers_) layer.step_work.back ^= 1U;
    std::memcpy(states_ + state_bytes_, states_, state_bytes_);
    for (bool done = false; !done;) {
        try {
            if (const unsigned parts = parts_for(steps); parts > 1) {
                run_wavefront(in, out, steps, parts, poll);
            } else if (const unsigned threads = threads_now(steps);
                       threads == 1 && (steps == 1 || step_flops_ * static_cast<double>(steps) < kShortFlops)) {
                if (share) share(0, 1);
                work(solo_.member(), in, out, steps);
            } else {
                run_on_team(threads, poll, [&](Member& member) {
                    if (share) share(member.rank(), member.size());
                    work(member, in, out, steps);
                });
            }
            done = true;
        } catch (const Forked&) {  // the child computes everything again with its own threads
            std::memcpy(states_, states_ + state_bytes_, state_bytes_);
        } catch (...) {
            std::memcpy(states_, states_ + state_bytes_, state_bytes_);
            throw;
        }
    }
}

void CpuRunner::run_simple_step(const std::byte* input, std::byte* output) {
    for (Layer& layer : layers_) {
        layer.step_work.source = address_of(input);
        layer.step_work.hidden_before = address_of(layer.hidden);
        layer.step_work.hidden = address_of(layer.next_hidden);
        layer.step_work.back ^= 1U;
        layer.step->run(bytes_of(layer.step_work), layer.constants.data(), solo_.member());
        std::swap(layer.hidden, layer.next_hidden);
        input = layer.hidden;
    }
    std::memcpy(output, layers_.back().hidden, layers_.back().hidden_bytes);
}

void CpuRunner::work(Member& member, const std::byte* input, std::byte* output, std::int64_t steps) const {
    const std::uint64_t element = storage_bytes(dtype_);
    // Uses the last barrier, which no kernel uses (see run_groups in loop-inl.h). At barrier 0 only long waits count as
    // lost.
    const auto wait = [&] {
        return member.size() == 1 || member.barrier(member.size(), member.rank(), member.size(), false) != 0;
    };
    for (std::int64_t done = 0; done < steps; done += block_) {
        const std::int64_t some = std::min(block_, steps - done);
        const std::byte* from = input + static_cast<std::uint64_t>(done * inputs_) * element;
        std::byte* const result = output + static_cast<std::uint64_t>(done * outputs_) * element;
        if (half_) {
            convert(member, from, wide_input_, some * inputs_, false);
            from = wide_input_;
            if (!wait()) return;
        }
        for (const Layer& layer : layers_) {
            const bool last = &layer == &layers_.back();
            std::byte* const to = layer.output != nullptr ? layer.output : result;
            if (!run_layer(member, layer, from, to, some, member.size())) return;
            if (half_) {
                // The next layer reads 16-bit numbers, as if each layer were a call of its own.
                const auto count = some * static_cast<std::int64_t>(layer.hidden_bytes / sizeof(float));
                convert(member, to, last ? result : narrow_output_, count, true);
                if (!wait()) return;
                if (!last) convert(member, narrow_output_, to, count, false);
            }
            if (!wait()) return;
            from = to;
        }
        if (member.stopped()) return;
    }
}

void CpuRunner::run_wavefront(const std::byte* input, std::byte* output, std::int64_t steps, unsigned parts,
                              const Poll& poll) const {
    const auto bytes = [](std::int64_t count, std::uint64_t of_each) {
        return static_cast<std::uint64_t>(count) * of_each;
    };
    std::vector<std::unique_ptr<Lanes>> blocks;
    for (std::int64_t done = 0; done < steps; done += block_) {
        const std::int64_t in_block = std::min(block_, steps - done);
        const std::byte* const source = input + bytes(done, bytes(inputs_, storage_bytes(dtype_)));
        std::byte* const result = output + bytes(done, layers_.back().hidden_bytes);
        const auto work = [=, this](Member& member, const Pieces::Piece& piece) {
            const Layer& layer = layers_[piece.lane];
            const auto begin = static_cast<std::int64_t>(piece.number) * kPieceSteps;
            const std::byte* const from =
                piece.lane == 0 ? source + bytes(begin, bytes(inputs_, storage_bytes(dtype_)))
                                : layers_[piece.lane - 1].output + bytes(begin, layers_[piece.lane - 1].hidden_bytes);
            std::byte* const to = (layer.output != nullptr ? layer.output : result) + bytes(begin, layer.hidden_bytes);
            return run_layer(member, layer, from, to, std::min(kPieceSteps, in_block - begin), 0);
        };
        blocks.push_back(std::make_unique<Lanes>(layers_.size(), pieces_of(in_block), parts, work));
    }
    run_on_team(most_threads_, poll, [&](Member& member) {
        for (const auto& block : blocks)
            if (!block->run(member)) return;
    });
}

bool CpuRunner::run_layer(Member& member, const Layer& layer, const std::byte* input, std::byte* output,
                          std::int64_t steps, unsigned which) const {
    run_loop(member, layer, input, output, steps);
    if (member.size() > 1 && member.barrier(which, member.rank(), member.size(), false) == 0) return false;
    if (member.rank() == 0)
        std::memcpy(layer.hidden, output + static_cast<std::uint64_t>(steps - 1) * layer.hidden_bytes,
                    layer.hidden_bytes);
    return true;
}

void CpuRunner::run_loop(Member& member, const Layer& layer, const std::byte* input, std::byte* output,
                         std::int64_t steps) const {
    if (steps == 1 && layer.step != nullptr) {
        StepWork step = layer.step_work;
        step.source = address_of(input);
        step.hidden_before = address_of(layer.hidden);
        step.hidden = address_of(output);
        return layer.step->run(bytes_of(step), layer.constants.data(), member);
    }
    LoopWork loop = layer.loop_work;
    loop.params.at[std::size_t{2} * abi::kProjected] = address_of(input);
    loop.params.at[std::size_t{2} * abi::kHidden] = address_of(output);
    loop.params.at[std::size_t{2} * abi::kInitHidden] = address_of(layer.hidden);
    loop.params.T = static_cast<std::uint32_t>(steps);
    layer.loop->run(bytes_of(loop), layer.constants.data(), member);
}

void CpuRunner::convert(Member& member, const void* from, void* to, std::int64_t count, bool narrow) const {
    const ConvertWork work{address_of(from), address_of(to), count, dtype_ == Dtype::bfloat16, narrow};
    convert_.run(bytes_of(work), nullptr, member);
}

void CpuRunner::read(std::size_t layer, Argument state, void* to) {
    const Layer& at = layers_.at(layer);
    if (state == Argument::init_state) {
        std::memcpy(to, at.hidden, at.hidden_bytes);
    } else {
        std::memcpy(to, at.cell, at.cell_bytes);
    }
}

void CpuRunner::write(std::size_t layer, Argument state, const void* from) {
    const Layer& at = layers_.at(layer);
    if (state == Argument::init_state) {
        std::memcpy(at.hidden, from, at.hidden_bytes);
    } else {
        std::memcpy(at.cell, from, at.cell_bytes);
    }
}

}  // namespace vkrnn::cpu
