#include "head_products.h"

namespace vkrnn {
namespace {

// The sets of the input products: each is of some gates, with a batch for each of their input heads.
struct InputSets {
    std::int64_t count, units;  // `units`: rows of W in a batch

    explicit InputSets(const Spec& spec)
        : count(spec.input_heads() == 1 ? 1 : spec.D() * spec.G()),
          units(spec.input_heads() == 1 ? spec.D() * spec.G() * spec.H : spec.input_head_units()) {}
};

Matrix source_of(const Spec& spec, std::size_t buffer) {
    return {buffer, 0, spec.I, spec.head_features(), false, true};
}

Matrix gates_of(const Spec& spec, const InputSets& sets, std::size_t buffer) {
    return {buffer, 0, spec.D() * spec.G() * spec.H, sets.units, false, true, spec.H};
}

Matrix weight_of(const Spec& spec, const InputSets& sets, std::size_t buffer) {
    const std::int64_t features = spec.head_features();
    return {buffer, 0, features, sets.units * features, false, false, spec.H * features};
}

Matrix by_columns(Matrix matrix) {
    matrix.columns = true;
    return matrix;
}

// Returns where a direction's first operand is in its buffer.
std::int64_t operand_offset(const Spec& spec, const RecurrentProduct& of, std::int64_t direction) {
    return (direction * of.operand_slots + (of.operand_slots > 1 ? of.slot : 0)) * spec.H;
}

// Calls `add` with the product of operand, weight and gates. With one operand and one head, the slots are one matrix,
// and the directions are batches. Otherwise it is called for each direction; the slots are sets, and the heads batches.
template <class Add>
void for_each_direction(const Spec& spec, const RecurrentProduct& of, const Add& add) {
    const std::int64_t H = spec.H, D = spec.D(), G = spec.G(), units = spec.head_units();
    const bool sets = spec.heads() > 1 || of.operand_slots > 1;
    for (std::int64_t d = of.direction; d < of.direction + (sets ? of.directions : 1); ++d) {
        const Matrix operand{of.operand, operand_offset(spec, of, d), D * of.operand_slots * H, units, false,
                             true,       of.operand_slots > 1 ? H : 0};
        const Matrix weight{
            of.weight, (d * G + of.slot) * H * units, units, sets ? units * units : G * H * H, false, false, H * units};
        const Matrix gates{of.gates,
                           (d * of.gates_slots + of.gates_slot) * H,
                           D * of.gates_slots * H,
                           sets ? units : of.gates_slots * H,
                           false,
                           true,
                           H};
        add(operand, weight, gates,
            Product{.m = sets ? units : of.slots * H,
                    .batches = sets ? spec.heads() : of.directions,
                    .sets = sets ? of.slots : 1});
    }
}

}  // namespace

Product project_product(const Spec& spec, const InputProduct& of) {
    const InputSets sets(spec);
    return {.m = spec.rows(),
            .n = sets.units,
            .k = spec.head_features(),
            .batches = spec.input_heads(),
            .a = source_of(spec, of.source),
            .b = weight_of(spec, sets, of.weight),
            .c = gates_of(spec, sets, of.gates),
            .sets = sets.count};
}

void add_source_gradient(PlanBuilder& builder, const InputProduct& of, bool independent) {
    const Spec& spec = builder.spec();
    const InputSets sets(spec);
    const std::string label = "gradient of source";
    const std::int64_t elements = spec.rows() * spec.I;
    const bool has_terms = sets.count > 1;
    const std::size_t out = has_terms ? builder.scratch(label + ": terms", sets.count * elements) : of.source;
    Product product{.m = spec.rows(),
                    .n = spec.head_features(),
                    .k = sets.units,
                    .batches = spec.input_heads(),
                    .a = gates_of(spec, sets, of.gates),
                    .b = by_columns(weight_of(spec, sets, of.weight)),
                    .c = source_of(spec, out),
                    .sets = sets.count};
    product.c.set = elements;
    if (spec.piece_steps == 0)
        builder.product(label, product, independent);
    else
        builder.add_to_pieces(PlanBuilder::Place::after,
                              [&](const TimeRows& rows) { builder.product(label, part_of(product, rows, spec.N)); });
    if (!has_terms) return;
    RowSum sum{.rows = sets.count, .width = elements, .in = {.buffer = out, .row = elements}, .out = of.source};
    sum.sequence = false;
    builder.row_sum(label, sum);
}

void add_input_weight_gradient(PlanBuilder& builder, const InputProduct& of) {
    const Spec& spec = builder.spec();
    const InputSets sets(spec);
    const std::string label = "gradient of input_weight";
    if (sets.count > 1 && sets.units == 1 && spec.head_features() == 1) {  // a sum for each unit
        const std::int64_t H = spec.H, D = spec.D(), G = spec.G();
        RowSum sum{.rows = spec.rows(), .directions = D, .gates = G, .width = H};
        sum.in = {.buffer = of.gates, .row = D * G * H, .direction = G * H, .gate = H};
        sum.factor = RowSum::Term{.buffer = of.source, .row = spec.I};
        sum.out = of.weight;
        return builder.row_sum(label, sum, true);
    }
    builder.product(label,
                    {.m = sets.units,
                     .n = spec.head_features(),
                     .k = spec.rows(),
                     .batches = spec.input_heads(),
                     .a = by_columns(gates_of(spec, sets, of.gates)),
                     .b = by_columns(source_of(spec, of.source)),
                     .c = weight_of(spec, sets, of.weight),
                     .sets = sets.count},
                    true);
}

void add_recurrent_product(PlanBuilder& builder, const std::string& label, const RecurrentProduct& of) {
    const Spec& spec = builder.spec();
    for_each_direction(spec, of,
                       [&](const Matrix& operand, const Matrix& weight, const Matrix& gates, Product product) {
                           product.n = product.m;
                           product.m = spec.rows();
                           product.k = spec.head_units();
                           product.a = operand;
                           product.b = weight;
                           product.c = gates;
                           builder.product(label, product);
                       });
}

void add_recurrent_gradient(PlanBuilder& builder, const RecurrentProduct& of, bool independent) {
    const Spec& spec = builder.spec();
    const std::string label = "gradient of recurrent_weight";
    const std::int64_t H = spec.H, D = spec.D(), G = spec.G();
    if (spec.head_units() == 1) {  // a sum for each unit
        for (std::int64_t d = of.direction; d < of.direction + of.directions; ++d) {
            RowSum sum{.rows = spec.rows(), .gates = of.slots, .width = H};
            sum.in = {.buffer = of.gates,
                      .offset = (d * of.gates_slots + of.gates_slot) * H,
                      .row = D * of.gates_slots * H,
                      .gate = H};
            sum.factor = RowSum::Term{.buffer = of.operand,
                                      .offset = operand_offset(spec, of, d),
                                      .row = D * of.operand_slots * H,
                                      .gate = of.operand_slots > 1 ? H : 0};
            sum.out = of.weight;
            sum.out_offset = (d * G + of.slot) * H;
            builder.row_sum(label, sum, independent || d > of.direction);
        }
        return;
    }
    bool is_first = true;
    for_each_direction(spec, of,
                       [&](const Matrix& operand, const Matrix& weight, const Matrix& gates, Product product) {
                           product.n = spec.head_units();
                           product.k = spec.rows();
                           product.a = by_columns(gates);
                           product.b = by_columns(operand);
                           product.c = weight;
                           builder.product(label, product, independent || !is_first);
                           is_first = false;
                       });
}

}  // namespace vkrnn
