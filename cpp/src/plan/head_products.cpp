#include "head_products.h"

namespace vkrnn {
namespace {

// The parts of the input products: each is of some gates, with `batches` heads of `units` units in each gate.
struct InputParts {
    std::int64_t count, units, batches;

    explicit InputParts(const Spec& spec)
        : count(spec.input_heads() == 1 ? 1 : spec.D() * spec.G()),
          units(spec.input_heads() == 1 ? spec.D() * spec.G() * spec.H : spec.input_head_units()),
          batches(spec.input_heads()) {}
};

Matrix source_of(const Spec& spec, std::size_t buffer) {
    return {buffer, 0, spec.I, spec.head_features(), false, true};
}

Matrix gates_of(const Spec& spec, const InputParts& parts, std::size_t buffer, std::int64_t part) {
    return {buffer, part * spec.H, spec.D() * spec.G() * spec.H, parts.units, false, true};
}

Matrix weight_of(const Spec& spec, const InputParts& parts, std::size_t buffer, std::int64_t part) {
    const std::int64_t features = spec.head_features();
    return {buffer, part * spec.H * features, features, parts.units * features, false};
}

Matrix by_columns(Matrix matrix) {
    matrix.columns = true;
    return matrix;
}

// The parts of recurrent products of some slots and directions. Without heads, slots are computed together, and so are
// directions, as batches.
template <class Add>
void for_each_part(const Spec& spec, const RecurrentProduct& of, const Add& add) {
    if (spec.heads() == 1) return add(of);
    RecurrentProduct part = of;
    part.slots = part.directions = 1;
    for (std::int64_t d = 0; d < of.directions; ++d)
        for (std::int64_t s = 0; s < of.slots; ++s) {
            part.direction = of.direction + d;
            part.slot = of.slot + s;
            part.gates_slot = of.gates_slot + s;
            add(part);
        }
}

struct RecurrentMatrices {
    Matrix operand, weight, gates;
    std::int64_t batches;
};

RecurrentMatrices matrices_of(const Spec& spec, const RecurrentProduct& part) {
    const std::int64_t H = spec.H, D = spec.D(), units = spec.head_units();
    const bool heads = spec.heads() > 1;
    const std::int64_t row = D * part.gates_slots * H;
    return {{part.operand, part.direction * H, D * H, units, false, true},
            {part.weight, (part.direction * spec.G() + part.slot) * H * units, units,
             heads ? units * units : spec.G() * H * H, false},
            {part.gates, (part.direction * part.gates_slots + part.gates_slot) * H, row,
             heads ? units : part.gates_slots * H, false, true},
            heads ? spec.heads() : part.directions};
}

}  // namespace

std::vector<Product> project_products(const Spec& spec, const InputProduct& of) {
    const InputParts parts(spec);
    std::vector<Product> found;
    for (std::int64_t part = 0; part < parts.count; ++part)
        found.push_back({.m = spec.rows(),
                         .n = parts.units,
                         .k = spec.head_features(),
                         .batches = parts.batches,
                         .a = source_of(spec, of.source),
                         .b = weight_of(spec, parts, of.weight, part),
                         .c = gates_of(spec, parts, of.gates, part)});
    return found;
}

void add_source_gradient(PlanBuilder& builder, const InputProduct& of, bool independent) {
    const Spec& spec = builder.spec();
    const InputParts parts(spec);
    const std::string label = "gradient of source";
    const std::int64_t elements = spec.rows() * spec.I;
    const std::size_t terms = parts.count == 1 ? of.source : builder.scratch(label + ": terms", parts.count * elements);
    for (std::int64_t part = 0; part < parts.count; ++part) {
        Product product{.m = spec.rows(),
                        .n = spec.head_features(),
                        .k = parts.units,
                        .batches = parts.batches,
                        .a = gates_of(spec, parts, of.gates, part),
                        .b = by_columns(weight_of(spec, parts, of.weight, part)),
                        .c = source_of(spec, terms)};
        product.c.offset = part * elements;
        if (spec.piece_steps == 0)
            builder.product(label, product, independent || part > 0);
        else
            builder.add_to_pieces(PlanBuilder::Place::after, [&](const TimeRows& rows) {
                builder.product(label, part_of(product, rows, spec.N));
            });
    }
    if (parts.count == 1) return;
    RowSum sum{.rows = parts.count, .width = elements, .in = {.buffer = terms, .row = elements}, .out = of.source};
    sum.sequence = false;
    builder.row_sum(label, sum);
}

void add_input_weight_gradient(PlanBuilder& builder, const InputProduct& of) {
    const Spec& spec = builder.spec();
    const InputParts parts(spec);
    const std::string label = "gradient of input_weight";
    if (parts.count > 1 && parts.units == 1 && spec.head_features() == 1) {  // a sum for each unit
        const std::int64_t H = spec.H, D = spec.D(), G = spec.G();
        RowSum sum{.rows = spec.rows(), .directions = D, .gates = G, .width = H};
        sum.in = {.buffer = of.gates, .row = D * G * H, .direction = G * H, .gate = H};
        sum.factor = RowSum::Term{.buffer = of.source, .row = spec.I};
        sum.out = of.weight;
        return builder.row_sum(label, sum, true);
    }
    for (std::int64_t part = 0; part < parts.count; ++part)
        builder.product(label,
                        {.m = parts.units,
                         .n = spec.head_features(),
                         .k = spec.rows(),
                         .batches = parts.batches,
                         .a = by_columns(gates_of(spec, parts, of.gates, part)),
                         .b = by_columns(source_of(spec, of.source)),
                         .c = weight_of(spec, parts, of.weight, part)},
                        true);
}

void add_recurrent_product(PlanBuilder& builder, const std::string& label, const RecurrentProduct& of) {
    const Spec& spec = builder.spec();
    for_each_part(spec, of, [&](const RecurrentProduct& part) {
        const auto [operand, weight, gates, batches] = matrices_of(spec, part);
        builder.product(label, {.m = spec.rows(),
                                .n = part.slots * spec.head_units(),
                                .k = spec.head_units(),
                                .batches = batches,
                                .a = operand,
                                .b = weight,
                                .c = gates});
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
            sum.factor = RowSum::Term{.buffer = of.operand, .offset = d * H, .row = D * H};
            sum.out = of.weight;
            sum.out_offset = (d * G + of.slot) * H;
            builder.row_sum(label, sum, independent || d > of.direction);
        }
        return;
    }
    for_each_part(spec, of, [&](const RecurrentProduct& part) {
        const auto [operand, weight, gates, batches] = matrices_of(spec, part);
        const bool first = part.direction == of.direction && part.slot == of.slot;
        builder.product(label,
                        {.m = part.slots * spec.head_units(),
                         .n = spec.head_units(),
                         .k = spec.rows(),
                         .batches = batches,
                         .a = by_columns(gates),
                         .b = by_columns(operand),
                         .c = weight},
                        independent || !first);
    });
}

}  // namespace vkrnn
