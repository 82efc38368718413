// One time step backward of one direction: see broadcast_step.glsl. The product is of the later step's deltas; at the last
// step the states' gradients stand where later steps carry theirs.
#define PRODUCTS 1
#include "broadcast_step.glsl"

void run_cell() {
    int k = push.p.step, previous = max(k - 1, 0);
    Lanes up[CELL_STATES], kept[CELL_GATES], v[CELL_GATES], before[CELL_STATES], after[CELL_STATES], q;
    up[0] = load_product(0);
    add(up[0], load_step(kStepUpstream, k, kOutputBackwards, 1, 0));
    if ((reads & kReadsCarry) != 0) add(up[0], load_step(kStepCarryHidden, 0, 0, 1, 0));
    [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) {
        kept[g] = load_step(kStepSaved, k, kOutputBackwards, CELL_GATES, slot_of(g));
        v[g] = zeros();
    }
    if ((reads & kReadsVectors) != 0)
        [[unroll]] for (uint i = 0; i < CELL_VECTORS; ++i) v[i] = load_vector(kStepVectors, CELL_VECTORS > 1 ? slot_of(i) : 0);
    before[0] = after[0] = q = zeros();
#ifdef CELL_KEEPS_HIDDEN
    before[0] = load_step(kStepPreviousHidden, previous, kOutputBackwards, 1, 0);
#endif
#ifdef CELL_CANDIDATE
    q = load_step(kStepCandidateProduct, k, kSourceBackwards, 1, 0);
#endif
#if CELL_STATES > 1
    up[1] = load_step(kStepCarryCell, 0, 0, 1, 0);
    before[1] = load_step(kStepPreviousCell, previous, kOutputBackwards, 1, 0);
    after[1] = load_step(kStepCell, k, kOutputBackwards, 1, 0);
#endif

    Lanes dx[CELL_GATES], dr[CELL_GATES], carry[CELL_STATES], hidden;
    [[unroll]] for (uint h = 0; h < halves; ++h) {
        Real ups[CELL_STATES], kepts[CELL_GATES], vs[CELL_GATES], befores[CELL_STATES], afters[CELL_STATES];
        [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) {
            kepts[g] = kept[g].half_[h];
            vs[g] = v[g].half_[h];
        }
        [[unroll]] for (uint i = 0; i < CELL_STATES; ++i) {
            ups[i] = up[i].half_[h];
            befores[i] = before[i].half_[h];
            afters[i] = after[i].half_[h];
        }
        Real dxs[CELL_GATES], drs[CELL_GATES], carries[CELL_STATES];
        cell_backward(kepts, vs, befores, afters, q.half_[h], ups, dxs, drs, carries);
        [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) {
            dx[g].half_[h] = dxs[g];
            dr[g].half_[h] = drs[g];
        }
        [[unroll]] for (uint i = 0; i < CELL_STATES; ++i) carry[i].half_[h] = carries[i];
#ifndef CELL_KEEPS_HIDDEN
        hidden.half_[h] = cell_hidden(kepts, afters);
#endif
    }

    if (blocks > parts) barrier();
    [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) {
        STORE_STEP(window0, kStepDelta, k, kSourceBackwards, CELL_GATES, slot_of(g), dx[g])
#ifdef CELL_CANDIDATE
        STORE_STEP(window1, kStepRecurrentDelta, k, kSourceBackwards, CELL_GATES, slot_of(g), dr[g])
#endif
    }
#ifdef CELL_KEEPS_HIDDEN
    STORE_STEP(window2, kStepCarried, 0, 0, 1, 0, carry[0])
#endif
#if CELL_STATES > 1
    STORE_STEP(window1, kStepCarried, 0, 0, 1, 0, carry[1])
#define LEFT_OPERAND window2
#else
#define LEFT_OPERAND window1
#endif
#ifndef CELL_KEEPS_HIDDEN
    if ((reads & kLeavesOperand) != 0)
        STORE_STEP(LEFT_OPERAND, kStepLeftOperand, k + 1, kSourceBackwards, 1, 0, hidden)
#endif
}

void main() {
    if (depth != 0) {
#ifdef CELL_CANDIDATE
        uint view = kStepLaterRecurrentDelta;
#else
        uint view = kStepLaterDelta;
#endif
        form_products(row_place(view, push.p.step + 1, kSourceBackwards, CELL_GATES, first_row()),
                      directions * CELL_GATES * units * 4);
    }
    RUN_CELLS
}
