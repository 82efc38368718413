// The cells of rows.cpp, written after their papers' equations, in float64 and for one batch row at a time. The test
// compares vkrnn with them.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "vkrnn/descriptor.h"

namespace vkrnn::test {

using Units = std::vector<double>;

// A step of one batch row.
struct RowStep {
    const Descriptor& descriptor;
    bool scales_product;                                         // the candidate's product is scaled, not its operand
    Units operand;                                               // h m
    std::function<Units(std::size_t gate)> projected;            // x W^T + b
    std::function<Units(std::size_t gate, const Units&)> recur;  // R times a vector
    std::vector<Units>& states;  // in: h and the cell states before the step; out: after it
};

inline double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

inline void mgu(const RowStep& step) {
    Units& h = step.states[0];
    const Units x_forget = step.projected(0), r_forget = step.recur(0, step.operand), x = step.projected(1);
    Units forget(h.size()), scaled(h.size());
    for (std::size_t j = 0; j < h.size(); ++j) {
        forget[j] = sigmoid_of(x_forget[j] + r_forget[j]);
        scaled[j] = step.operand[j] * forget[j];
    }
    const Units r = step.recur(1, step.scales_product ? step.operand : scaled);
    for (std::size_t j = 0; j < h.size(); ++j) {
        const double candidate = std::tanh(x[j] + (step.scales_product ? forget[j] : 1.0) * r[j]);
        const double zoneout = step.descriptor.numbers[0];
        h[j] = zoneout * h[j] + (1 - zoneout) * ((1 - forget[j]) * h[j] + forget[j] * candidate);
    }
}

inline void coupled_lstm(const RowStep& step) {
    Units &h = step.states[0], &c = step.states[1];
    Units gates[3];
    for (std::size_t g = 0; g < 3; ++g) {
        gates[g] = step.projected(g);
        const Units r = step.recur(g, step.operand);
        for (std::size_t j = 0; j < h.size(); ++j) gates[g][j] += r[j];
    }
    for (std::size_t j = 0; j < h.size(); ++j) {
        const double i = sigmoid_of(gates[0][j]);
        c[j] = (1 - i) * c[j] + i * std::tanh(gates[1][j]);
        h[j] = sigmoid_of(gates[2][j]) * std::tanh(c[j]);
    }
}

inline void make_step(std::string_view cell, const RowStep& step) {
    if (cell == "mgu") return mgu(step);
    if (cell == "coupled_lstm") return coupled_lstm(step);
    throw std::logic_error("no equations for " + std::string(cell));
}

}  // namespace vkrnn::test
