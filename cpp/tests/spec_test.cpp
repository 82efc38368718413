// Tests check_call: accepted arguments, the returned spec, and whole messages.
#include "vkrnn/spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "vkrnn/error.h"

namespace vkrnn {
namespace {

using enum Argument;
using Shape = std::vector<std::int64_t>;

TensorInfo tensor(Shape shape, std::string dtype = "float32") { return {std::move(dtype), std::move(shape)}; }

// T, N, I, H = 5, 3, 7, 4.
Arguments lstm_arguments() {
    return {{source, tensor({5, 3, 7})}, {recurrent_weight, tensor({16, 4})}, {input_weight, tensor({16, 7})}};
}

Arguments bidirectional_lstm_arguments() {
    return {{source, tensor({5, 3, 7})}, {recurrent_weight, tensor({2, 16, 4})}, {input_weight, tensor({32, 7})}};
}

Arguments lstm_gradients_arguments() {
    Arguments arguments = lstm_arguments();
    arguments[source_gradient] = tensor({5, 3, 4});
    arguments[z_state] = tensor({5, 3, 16});
    arguments[cell_output_fwd] = tensor({5, 3, 4});
    return arguments;
}

Arguments with(Arguments arguments, Argument argument, TensorInfo info) {
    arguments[argument] = std::move(info);
    return arguments;
}

Arguments in_dtype(Arguments arguments, const std::string& dtype) {
    for (auto& [argument, info] : arguments) info.dtype = dtype;
    return arguments;
}

TensorInfo integers(std::vector<std::int64_t> values, std::string dtype = "int32") {
    return {std::move(dtype), {static_cast<std::int64_t>(values.size())}, std::move(values)};
}

Descriptor descriptor(CellKind kind, std::initializer_list<Flag> flags = {}) {
    Descriptor made = default_descriptor(kind);
    for (const Flag flag : flags) made.set(flag, true);
    return made;
}

const Descriptor kLstm = descriptor(CellKind::lstm);
const Descriptor kBidirectional = descriptor(CellKind::lstm, {Flag::bidirectional});

template <class Exception>
std::string message(const Descriptor& made, bool gradients, const Arguments& arguments, std::string_view label = {}) {
    try {
        check_call(made, gradients, arguments, label);
    } catch (const Exception& error) {
        return error.what();
    }
    return "no error";
}

std::string lstm_error(const Arguments& arguments) { return message<ValueError>(kLstm, false, arguments); }
std::string bidirectional_error(const Arguments& arguments) {
    return message<ValueError>(kBidirectional, false, arguments);
}
std::string gradients_error(const Arguments& arguments) { return message<ValueError>(kLstm, true, arguments); }

std::string text(const std::vector<ResultInfo>& results) {
    std::string text;
    for (const ResultInfo& result : results) {
        text += result.name;
        for (const std::int64_t size : result.shape) text.append(" ").append(std::to_string(size));
        text += "; ";
    }
    return text;
}

TEST(Spec, HoldsTheSizes) {
    const Spec spec = check_call(kLstm, false, lstm_arguments()).spec;
    EXPECT_EQ(spec.T, 5);
    EXPECT_EQ(spec.N, 3);
    EXPECT_EQ(spec.I, 7);
    EXPECT_EQ(spec.H, 4);
    EXPECT_EQ(spec.D(), 1);
    EXPECT_EQ(spec.G(), 4);
    EXPECT_TRUE(spec.has(input_weight));
    EXPECT_FALSE(spec.has(bias));
    EXPECT_FALSE(spec.gradients);
}

TEST(Spec, WithoutInputWeightTheSourceHoldsTheGates) {
    const Arguments arguments{{source, tensor({5, 3, 24})}, {recurrent_weight, tensor({2, 12, 4})}};
    const Spec spec = check_call(descriptor(CellKind::gru, {Flag::bidirectional}), false, arguments).spec;
    EXPECT_EQ(spec.I, 24);
    EXPECT_EQ(spec.H, 4);
}

TEST(Spec, ForwardResults) {
    const auto results = [](const Descriptor& made, const Arguments& arguments) {
        return text(check_call(made, false, arguments).results);
    };
    EXPECT_EQ(results(kLstm, lstm_arguments()), "output 5 3 4; ");
    EXPECT_EQ(results(descriptor(CellKind::lstm, {Flag::produce_cell}), lstm_arguments()),
              "output 5 3 4; cell_output 5 3 4; ");
    EXPECT_EQ(results(descriptor(CellKind::lstm, {Flag::training}), lstm_arguments()),
              "output 5 3 4; cell_output 5 3 4; z_state 5 3 16; ");
    EXPECT_EQ(
        results(descriptor(CellKind::lstm, {Flag::training, Flag::bidirectional}), bidirectional_lstm_arguments()),
        "output 5 3 8; cell_output 5 3 8; z_state 5 3 32; ");
    const Arguments rnn{{source, tensor({5, 3, 4})}, {recurrent_weight, tensor({4, 4})}};
    EXPECT_EQ(results(descriptor(CellKind::single_gate_rnn, {Flag::training}), rnn), "output 5 3 4; z_state 5 3 4; ");
}

TEST(Spec, GradientsHaveTheShapesOfTheArguments) {
    Arguments arguments = lstm_gradients_arguments();
    EXPECT_EQ(text(check_call(kLstm, true, arguments).results),
              "source 5 3 7; recurrent_weight 16 4; input_weight 16 7; ");
    arguments[init_cell] = tensor({1, 3, 4});
    arguments[peephole] = tensor({16});
    arguments[mask] = tensor({3, 1});
    arguments[bias] = tensor({16});
    EXPECT_EQ(text(check_call(kLstm, true, arguments).results),
              "source 5 3 7; recurrent_weight 16 4; input_weight 16 7; bias 16; peephole 16; init_cell 1 3 4; ");
}

TEST(Spec, AcceptsTheLenientShapes) {
    const Descriptor made = kBidirectional;
    for (const Shape& shape : {Shape{2, 16}, Shape{32}}) {
        EXPECT_NO_THROW(check_call(made, false, with(bidirectional_lstm_arguments(), peephole, tensor(shape))));
    }
    for (const Shape& shape : {Shape{3, 8}, Shape{1, 3, 8}}) {
        EXPECT_NO_THROW(check_call(made, false, with(bidirectional_lstm_arguments(), init_state, tensor(shape))));
    }
}

TEST(Spec, TellsGradientsOfAllCellsFromThoseOfTheLast) {
    const auto spec = [](const Shape& shape) {
        return check_call(kLstm, true, with(lstm_gradients_arguments(), cell_gradient, tensor(shape))).spec;
    };
    EXPECT_EQ(spec({1, 3, 4}), spec({3, 4}));
    EXPECT_FALSE(spec({3, 4}).has_largest(cell_gradient));
    EXPECT_EQ(shape_of(spec({3, 4}), cell_gradient), (Shape{3, 4}));
    EXPECT_TRUE(spec({5, 3, 4}).has_largest(cell_gradient));
    EXPECT_EQ(shape_of(spec({5, 3, 4}), cell_gradient), (Shape{5, 3, 4}));
}

TEST(Spec, MaskBroadcasts) {
    const auto varies = [](const Shape& shape) {
        return check_call(kLstm, false, with(lstm_arguments(), mask, tensor(shape))).spec.mask_varies;
    };
    using Varies = std::array<bool, 3>;
    EXPECT_EQ(varies({}), (Varies{false, false, false}));
    EXPECT_EQ(varies({4}), (Varies{false, false, true}));
    EXPECT_EQ(varies({3, 1}), (Varies{false, true, false}));
    EXPECT_EQ(varies({5, 1, 4}), (Varies{true, false, true}));
    EXPECT_EQ(varies({5, 3, 4}), (Varies{true, true, true}));
}

TEST(Spec, MaskOfGates) {
    const auto spec = [](const Shape& shape) {
        return check_call(kLstm, false, with(lstm_arguments(), mask, tensor(shape))).spec;
    };
    EXPECT_FALSE(spec({4}).masks_gates());
    EXPECT_FALSE(spec({1}).masks_gates());
    EXPECT_EQ(spec({4}).mask_slots(), 1);
    const Spec gates = spec({1, 3, 16});
    EXPECT_TRUE(gates.masks_gates());
    EXPECT_EQ(gates.mask_slots(), 4);
    EXPECT_EQ(gates.mask_varies, (std::array<bool, 3>{false, true, true}));
    EXPECT_EQ(shape_of(gates, mask), (Shape{1, 3, 16}));
}

TEST(Spec, CallsThatDoTheSameAreEqual) {
    const Arguments arguments = bidirectional_lstm_arguments();
    const auto spec = [&](std::initializer_list<Flag> flags) {
        return check_call(descriptor(CellKind::lstm, flags), false, arguments).spec;
    };
    EXPECT_EQ(spec({Flag::bidirectional}), spec({Flag::bidirectional, Flag::reverse}));
    EXPECT_EQ(spec({Flag::bidirectional, Flag::training}),
              spec({Flag::bidirectional, Flag::training, Flag::produce_cell}));
    EXPECT_NE(spec({Flag::bidirectional}), spec({Flag::bidirectional, Flag::training}));

    const Arguments gradients = lstm_gradients_arguments();
    EXPECT_EQ(check_call(kLstm, true, gradients).spec,
              check_call(descriptor(CellKind::lstm, {Flag::training, Flag::produce_cell}), true, gradients).spec);
    EXPECT_EQ(check_call(kLstm, false, lstm_arguments(), "first").spec,
              check_call(kLstm, false, lstm_arguments()).spec);
}

TEST(Spec, HoldsConstantsOfHardSigmoidsOnlyIfThereAreSome) {
    Descriptor other = kLstm;
    other.numbers[kHardSigmoidAlphaSlot] = 1.0 / 6;
    const auto spec = [](const Descriptor& made) { return check_call(made, false, lstm_arguments()).spec; };
    EXPECT_EQ(spec(other), spec(kLstm));
    Descriptor hard = kLstm, other_hard = other;
    for (Descriptor* made : {&hard, &other_hard}) made->activations[1] = Activation::hard_sigmoid;
    EXPECT_NE(spec(other_hard), spec(hard));
    EXPECT_EQ(spec(hard).descriptor, hard);
}

TEST(Spec, HoldsTheDtype) {
    for (const Dtype dtype : kDtypes) {
        const std::string name(name_of(dtype));
        EXPECT_EQ(check_call(kLstm, false, in_dtype(lstm_arguments(), name)).spec.dtype, dtype) << name;
        EXPECT_EQ(check_call(kLstm, true, in_dtype(lstm_gradients_arguments(), name)).spec.dtype, dtype) << name;
    }
    EXPECT_NE(check_call(kLstm, false, in_dtype(lstm_arguments(), "float16")).spec,
              check_call(kLstm, false, in_dtype(lstm_arguments(), "bfloat16")).spec);
}

TEST(Spec, OnlyThePresenceOfLengthsMatters) {
    const auto spec = [](TensorInfo info) {
        return check_call(kLstm, false, with(lstm_arguments(), lengths, std::move(info))).spec;
    };
    EXPECT_TRUE(spec(integers({5, 1, 3})).has(lengths));
    EXPECT_EQ(spec(integers({5, 1, 3})), spec(integers({0, 0, 5})));
    EXPECT_EQ(spec(integers({5, 1, 3})), spec(integers({2, 5, 5}, "uint8")));
    EXPECT_NE(spec(integers({5, 5, 5})), check_call(kLstm, false, lstm_arguments()).spec);
    // Lengths are integers for every dtype, and have no gradient.
    const Arguments wide = with(in_dtype(lstm_gradients_arguments(), "float64"), lengths, integers({5, 1, 3}, "int64"));
    EXPECT_EQ(text(check_call(kLstm, true, wide).results), "source 5 3 7; recurrent_weight 16 4; input_weight 16 7; ");
}

TEST(SpecErrors, NameTheCall) {
    const Cell& lstm = cell(CellKind::lstm);
    EXPECT_EQ(message_prefix(lstm, false, ""), "[lstm]");
    EXPECT_EQ(message_prefix(lstm, true, "layer 2"), "[lstm_gradients 'layer 2']");
    EXPECT_EQ(message<TypeError>(kLstm, false, with(lstm_arguments(), source, tensor({5, 3, 7}, "float64")), "layer 2"),
              "[lstm 'layer 2'] recurrent_weight: expected dtype float64 like source, got float32");
}

TEST(SpecErrors, Arguments) {
    EXPECT_EQ(message<TypeError>(kLstm, false, with(lstm_arguments(), secondary_bias, tensor({4}))),
              "[lstm] secondary_bias: unknown argument; lstm takes source, recurrent_weight, input_weight, bias, "
              "init_state, init_cell, mask, peephole, lengths, reset, reset_state, reset_cell, zoneout_mask, "
              "zoneout_cell_mask, leak");
    EXPECT_EQ(message<ValueError>(kLstm, false, {{recurrent_weight, tensor({16, 4})}}),
              "[lstm] source: expected an array, got none");
    EXPECT_EQ(message<ValueError>(kLstm, false, {{source, tensor({5, 3, 7})}}),
              "[lstm] source: expected shape [T, N, 4H], got [5, 3, 7] (7 is no multiple of the 4 gates)");
    EXPECT_EQ(message<ValueError>(kLstm, true, lstm_arguments()),
              "[lstm_gradients] z_state: expected an array, got none");
}

TEST(SpecErrors, Numbers) {
    const auto error = [](std::size_t slot, double number) {
        Descriptor made = kLstm;
        made.activations[0] = Activation::hard_sigmoid;
        made.numbers[slot] = number;
        return message<ValueError>(made, false, lstm_arguments());
    };
    EXPECT_EQ(error(kClipSlot, -1), "[lstm] descriptor.clip: expected 0 to 3.40282e+38, got -1");
    EXPECT_EQ(error(kClipSlot, std::nan("")), "[lstm] descriptor.clip: expected 0 to 3.40282e+38, got nan");
    EXPECT_EQ(error(kHardSigmoidAlphaSlot, 1e39),
              "[lstm] descriptor.hard_sigmoid_alpha: expected -3.40282e+38 to 3.40282e+38, got 1e+39");
    EXPECT_EQ(error(kHardSigmoidBetaSlot, -1e39),
              "[lstm] descriptor.hard_sigmoid_beta: expected -3.40282e+38 to 3.40282e+38, got -1e+39");
}

TEST(SpecErrors, Heads) {
    const auto error = [](std::size_t slot, std::int64_t heads, const Arguments& arguments) {
        Descriptor made = kLstm;
        made.counts[slot] = heads;
        return message<ValueError>(made, false, arguments);
    };
    EXPECT_EQ(error(kHeadsSlot, 0, lstm_arguments()), "[lstm] descriptor.heads: expected 1 or more, got 0");
    EXPECT_EQ(error(kInputHeadsSlot, -1, lstm_arguments()),
              "[lstm] descriptor.input_heads: expected 1 or more, got -1");
    EXPECT_EQ(error(kHeadsSlot, 3, lstm_arguments()),
              "[lstm] descriptor.heads: expected a divisor of H = 4, got 3 (H = 4 from recurrent_weight.shape[0] / 4)");
    EXPECT_EQ(error(kHeadsSlot, 2, lstm_arguments()),
              "[lstm] recurrent_weight: expected shape [4H, H/2] = [16, 2], got [16, 4] (H = 4 from "
              "recurrent_weight.shape[0] / 4)");
}

TEST(Spec, TakesTheBlocksOfWeightsWithHeads) {
    Descriptor descriptor = kLstm;
    descriptor.counts = {2, 4};
    const Arguments arguments{
        {source, tensor({5, 3, 8})}, {recurrent_weight, tensor({16, 2})}, {input_weight, tensor({16, 2})}};
    const Spec spec = check_call(descriptor, false, arguments).spec;
    EXPECT_EQ(spec.H, 4);
    EXPECT_EQ(spec.head_units(), 2);
    EXPECT_EQ(spec.input_head_units(), 1);
    EXPECT_EQ(spec.head_features(), 2);
    EXPECT_EQ(shape_of(spec, recurrent_weight), (TensorShape{16, 2}));
    EXPECT_EQ(shape_of(spec, input_weight), (TensorShape{16, 2}));
    EXPECT_EQ(shape_of(spec, bias), (TensorShape{16}));
}

TEST(SpecErrors, Dtypes) {
    const auto error = [](bool gradients, const Arguments& arguments) {
        return message<TypeError>(kLstm, gradients, arguments);
    };
    EXPECT_EQ(error(false, with(lstm_arguments(), source, tensor({5, 3, 7}, "int64"))),
              "[lstm] source: expected dtype float32, float64, float16 or bfloat16, got int64");
    EXPECT_EQ(error(false, in_dtype(lstm_arguments(), "float128")),
              "[lstm] source: expected dtype float32, float64, float16 or bfloat16, got float128");
    EXPECT_EQ(error(false, with(in_dtype(lstm_arguments(), "float64"), bias, tensor({16}))),
              "[lstm] bias: expected dtype float64 like source, got float32");
    EXPECT_EQ(error(false, with(in_dtype(lstm_arguments(), "bfloat16"), mask, tensor({4}, "float16"))),
              "[lstm] mask: expected dtype bfloat16 like source, got float16");
    EXPECT_EQ(error(true, with(lstm_gradients_arguments(), z_state, tensor({5, 3, 16}, "int32"))),
              "[lstm_gradients] z_state: expected dtype float32 like source, got int32");
}

TEST(SpecErrors, Lengths) {
    const auto at_fault = [](const TensorInfo& info) { return with(lstm_arguments(), lengths, info); };
    for (const std::string dtype : {"float32", "float64", "bool", "complex64", "object"})
        EXPECT_EQ(message<TypeError>(kLstm, false, at_fault(tensor({3}, dtype))),
                  "[lstm] lengths: expected dtype int32 or another integer, got " + dtype);
    EXPECT_EQ(lstm_error(at_fault(integers({1, 2, 3, 4}))),
              "[lstm] lengths: expected shape [N] = [3], got [4] (N = 3 from source.shape[1])");
    EXPECT_EQ(lstm_error(at_fault(tensor({}, "int64"))),
              "[lstm] lengths: expected shape [N] = [3], got [] (N = 3 from source.shape[1])");
    EXPECT_EQ(lstm_error(at_fault(tensor({3, 1}, "int64"))),
              "[lstm] lengths: expected shape [N] = [3], got [3, 1] (N = 3 from source.shape[1])");
    EXPECT_EQ(lstm_error(at_fault(integers({5, 7, 0}))), "[lstm] lengths: expected 0 to T = 5, got 7 at [1]");
    EXPECT_EQ(lstm_error(at_fault(integers({-1, 1, 0}, "int8"))), "[lstm] lengths: expected 0 to T = 5, got -1 at [0]");
    EXPECT_EQ(gradients_error(with(lstm_gradients_arguments(), lengths, integers({1, 2, 6}))),
              "[lstm_gradients] lengths: expected 0 to T = 5, got 6 at [2]");
}

TEST(SpecErrors, Axes) {
    EXPECT_EQ(lstm_error(with(lstm_arguments(), source, tensor({0, 3, 7}))),
              "[lstm] source: every axis but the batch must be at least 1, got [0, 3, 7]");
    EXPECT_EQ(lstm_error(with(lstm_arguments(), bias, tensor({0}))),
              "[lstm] bias: every axis but the batch must be at least 1, got [0]");
    EXPECT_EQ(lstm_error(with(lstm_arguments(), source, tensor({5, 7}))),
              "[lstm] source: expected 3 axes [T, N, I], got [5, 7]");
    EXPECT_EQ(
        message<ValueError>(kBidirectional, false, {{source, tensor({5})}, {recurrent_weight, tensor({2, 16, 4})}}),
        "[lstm] source: expected 3 axes [T, N, 8H], got [5]");
}

TEST(SpecErrors, RecurrentWeight) {
    EXPECT_EQ(lstm_error(with(lstm_arguments(), recurrent_weight, tensor({512, 64}))),
              "[lstm] recurrent_weight: expected shape [4H, H] = [512, 128], got [512, 64] "
              "(H = 128 from recurrent_weight.shape[0] / 4)");
    EXPECT_EQ(lstm_error(with(lstm_arguments(), recurrent_weight, tensor({514, 128}))),
              "[lstm] recurrent_weight: expected shape [4H, H], got [514, 128] (514 is no multiple of the 4 gates)");
    EXPECT_EQ(lstm_error(with(lstm_arguments(), recurrent_weight, tensor({16}))),
              "[lstm] recurrent_weight: expected shape [4H, H], got [16]");
    EXPECT_EQ(lstm_error(bidirectional_lstm_arguments()),
              "[lstm] recurrent_weight: expected shape [4H, H], got [2, 16, 4] "
              "(weights for two directions need bidirectional=True)");
    EXPECT_EQ(bidirectional_error(lstm_arguments()),
              "[lstm] recurrent_weight: expected shape [2, 4H, H], got [16, 4] "
              "(bidirectional=True needs a weight for each of the two directions)");
    EXPECT_EQ(bidirectional_error(with(bidirectional_lstm_arguments(), recurrent_weight, tensor({3, 16, 4}))),
              "[lstm] recurrent_weight: expected shape [2, 4H, H] = [2, 16, 4], got [3, 16, 4] "
              "(H = 4 from recurrent_weight.shape[1] / 4)");
    EXPECT_EQ(message<ValueError>(descriptor(CellKind::single_gate_rnn), false,
                                  {{source, tensor({5, 3, 4})}, {recurrent_weight, tensor({4, 5})}}),
              "[single_gate_rnn] recurrent_weight: expected shape [H, H] = [4, 4], got [4, 5] "
              "(H = 4 from recurrent_weight.shape[0])");
}

TEST(SpecErrors, TransposedWeights) {
    EXPECT_EQ(lstm_error(with(lstm_arguments(), recurrent_weight, tensor({4, 16}))),
              "[lstm] recurrent_weight: expected shape [4H, H] = [16, 4], got [4, 16] (it looks transposed)");
    EXPECT_EQ(lstm_error(with(lstm_arguments(), recurrent_weight, tensor({3, 12}))),  // 3 is no multiple of the gates
              "[lstm] recurrent_weight: expected shape [4H, H] = [12, 3], got [3, 12] (it looks transposed)");
    EXPECT_EQ(bidirectional_error(with(bidirectional_lstm_arguments(), recurrent_weight, tensor({2, 4, 16}))),
              "[lstm] recurrent_weight: expected shape [2, 4H, H] = [2, 16, 4], got [2, 4, 16] (it looks transposed)");
    EXPECT_EQ(message<ValueError>(descriptor(CellKind::gru), false,
                                  {{source, tensor({5, 3, 4})}, {recurrent_weight, tensor({4, 12})}}),
              "[gru] recurrent_weight: expected shape [3H, H] = [12, 4], got [4, 12] (it looks transposed)");
    EXPECT_EQ(lstm_error(with(lstm_arguments(), input_weight, tensor({7, 16}))),
              "[lstm] input_weight: expected shape [4H, I] = [16, 7], got [7, 16] (I = 7 from source.shape[2], "
              "H = 4 from recurrent_weight.shape[0] / 4; it looks transposed)");
}

TEST(SpecErrors, Sizes) {
    EXPECT_EQ(
        lstm_error({{source, tensor({5, 3, 7})}, {recurrent_weight, tensor({16, 4})}}),
        "[lstm] source: expected shape [T, N, 4H] = [5, 3, 16], got [5, 3, 7] (T = 5 from source.shape[0], N = 3 from "
        "source.shape[1], H = 4 from recurrent_weight.shape[0] / 4; without input_weight the source holds the gates)");
    EXPECT_EQ(lstm_error(with(lstm_arguments(), input_weight, tensor({16, 8}))),
              "[lstm] input_weight: expected shape [4H, I] = [16, 7], got [16, 8] (I = 7 from source.shape[2], "
              "H = 4 from recurrent_weight.shape[0] / 4)");
    EXPECT_EQ(lstm_error(with(lstm_arguments(), bias, tensor({4}))),
              "[lstm] bias: expected shape [4H] = [16], got [4] (H = 4 from recurrent_weight.shape[0] / 4)");
    EXPECT_EQ(lstm_error(with(lstm_arguments(), init_state, tensor({4, 3}))),
              "[lstm] init_state: expected shape [N, H] = [3, 4] or [1, N, H] = [1, 3, 4], got [4, 3] "
              "(N = 3 from source.shape[1], H = 4 from recurrent_weight.shape[0] / 4)");
    EXPECT_EQ(bidirectional_error(with(bidirectional_lstm_arguments(), peephole, tensor({16}))),
              "[lstm] peephole: expected shape [2, 4H] = [2, 16] or [8H] = [32], got [16] "
              "(H = 4 from recurrent_weight.shape[1] / 4)");
    EXPECT_EQ(
        lstm_error(with(lstm_arguments(), mask, tensor({3, 5, 4}))),
        "[lstm] mask: expected a shape that broadcasts to [T, N, H] = [5, 3, 4] or [T, N, 4H] = [5, 3, 16], got "
        "[3, 5, 4] (T = 5 from source.shape[0], N = 3 from source.shape[1], H = 4 from recurrent_weight.shape[0] / 4)");
}

TEST(SpecErrors, GradientsOfCells) {
    EXPECT_EQ(gradients_error(with(lstm_gradients_arguments(), cell_gradient, tensor({4, 3, 4}))),
              "[lstm_gradients] cell_gradient: expected shape [N, H] = [3, 4] or [1, N, H] = [1, 3, 4] or [T, N, H] = "
              "[5, 3, 4], got [4, 3, 4] (T = 5 from source.shape[0], N = 3 from source.shape[1], H = 4 from "
              "recurrent_weight.shape[0] / 4)");
}

TEST(SpecErrors, TrainingStateThatDoesNotFit) {
    EXPECT_EQ(
        gradients_error(with(lstm_gradients_arguments(), z_state, tensor({5, 3, 12}))),
        "[lstm_gradients] z_state: expected shape [T, N, 4H] = [5, 3, 16], got [5, 3, 12] (T = 5 from source.shape[0], "
        "N = 3 from source.shape[1], H = 4 from recurrent_weight.shape[0] / 4); it must come from lstm with "
        "training=True and these arguments");
    EXPECT_EQ(gradients_error(with(lstm_gradients_arguments(), source_gradient, tensor({5, 4}))),
              "[lstm_gradients] source_gradient: expected shape [T, N, H] = [5, 3, 4], got [5, 4] (T = 5 from "
              "source.shape[0], N = 3 from source.shape[1], H = 4 from recurrent_weight.shape[0] / 4)");
}

}  // namespace
}  // namespace vkrnn
