"""The text of a plan: all lines of two examples, the constants of a step, the call's name, and the columns."""

from __future__ import annotations

import numpy as np

import vkrnn
from cases import Case, inputs
from plans import dispatches, full, plan, zeros

SMALL = Case("lstm", 5, 3, 7, 4, {"bidirectional": True}, frozenset({"input_weight", "bias", "peephole", "init_state"}))

FORWARD = """\
lstm  T=5 N=3 I=7 H=4 D=2
schedule steps, gemm tiled, lanes 1, rows 2, workgroup 32
buffers: 8.6 kB
  scratch   zeros                             16 B
  input     source                            420 B
  input     recurrent_weight                  512 B
  input     input_weight                      896 B
  input     bias                              128 B
  input     init_state                        96 B
  input     peephole                          128 B
  scratch   projected                         1.9 kB
  result    output                            480 B
  result    cell_output                       480 B
  result    z_state                           1.9 kB
  constant  parameters                        1.6 kB
steps: 6 dispatches, 10.6 kFLOP in products
  clear zeros
  project                           gemm_tiled  groups 1 x 1 x 1
      store_vectors, tile 64
  for k = 0, 1, ... (5 steps)
    step                              lstm_forward  groups 2 x 1 x 2
        workgroup 32, lanes 1, rows 2, vector_loads, gate_order 0x3210, training, peephole,
        activations sigmoid sigmoid tanh sigmoid tanh
"""

GRADIENTS = """\
lstm_gradients  T=5 N=3 I=7 H=4 D=2
schedule steps, gemm tiled, lanes 1, rows 2, workgroup 32
buffers: 13.9 kB
  scratch   zeros                             16 B
  input     source                            420 B
  input     recurrent_weight                  512 B
  input     source_gradient                   480 B
  input     z_state                           1.9 kB
  input     cell_output_fwd                   480 B
  input     input_weight                      896 B
  input     bias                              128 B
  input     init_state                        96 B
  input     peephole                          128 B
  result    gradient of source                420 B
  result    gradient of recurrent_weight      512 B
  result    gradient of input_weight          896 B
  result    gradient of bias                  128 B
  result    gradient of peephole              128 B
  result    gradient of init_state            96 B
  scratch   delta                             1.9 kB
  scratch   operand                           480 B
  scratch   previous cell                     480 B
  scratch   carried cell                      96 B
  constant  parameters                        1.6 kB
  scratch   transposed weight                 512 B
  constant  parameters                        1.6 kB
steps: 13 dispatches, 21.1 kFLOP in products
  clear zeros
  recompute                         lstm_recompute  groups 4 x 1 x 2
      workgroup 128, gate_order 0x3210, kept_cells 1, peephole, activations sigmoid sigmoid tanh sigmoid tanh
  transpose                         transpose  groups 1 x 1 x 2  (no barrier)
  for k = 4, 3, ... (5 steps)
    step back                         lstm_backward  groups 2 x 1 x 2
        workgroup 32, lanes 1, rows 2, vector_loads, gate_order 0x3210, peephole,
        activations sigmoid sigmoid tanh sigmoid tanh
  initial state                     lstm_backward  groups 2 x 1 x 2
      workgroup 32, lanes 1, rows 2, vector_loads, gate_order 0x3210, peephole,
      activations sigmoid sigmoid tanh sigmoid tanh
  gradient of bias                  reduce  groups 1 x 1 x 1
  gradient of peephole              reduce  groups 1 x 1 x 1  (no barrier)
      factor
  gradient of source                gemm_tiled  groups 1 x 1 x 1  (no barrier)
      b_columns, tile 64
  gradient of input_weight          gemm_tiled  groups 1 x 1 x 1  (no barrier)
      a_columns, b_columns, tile 64
  gradient of recurrent_weight      gemm_tiled  groups 1 x 1 x 2  (no barrier)
      a_columns, b_columns, vectors, store_vectors, tile 64
"""


def test_the_text_of_a_forward_plan(portable: vkrnn.Device) -> None:
    """The whole text, for a small LSTM."""
    assert str(plan(SMALL, portable, training=True)) == FORWARD


def test_the_text_of_a_gradient_plan(portable: vkrnn.Device) -> None:
    """The whole text, for the gradients of the same call."""
    assert str(plan(SMALL, portable, gradients=True)) == GRADIENTS


def test_constants_have_names_and_values(portable: vkrnn.Device) -> None:
    """In the steps as in the text: counts, flags, the order of the gates, activations, and numbers of either width."""
    arrays = zeros(SMALL, gradients=False)
    for dtype in (np.float32, np.float64) if portable.profile.float64 else (np.float32,):
        given = {name: array.astype(dtype) for name, array in arrays.items()}
        descriptor = SMALL.descriptor(training=True, clip=1.5)
        planned = vkrnn.plan(vkrnn.lstm, **given, descriptor=descriptor, device=portable)
        [step] = dispatches(planned)[1]
        assert step["constants"] == {
            "workgroup": 32,
            "lanes": 1,
            "rows": 2,
            "vector_loads": True,
            "gate_order": "0x3210",
            "training": True,
            "peephole": True,
            "activations": "sigmoid sigmoid tanh sigmoid tanh",
            "clip": 1.5,
        }
        assert "activations sigmoid sigmoid tanh sigmoid tanh, clip 1.5\n" in str(planned)


def test_name_of_a_call_is_in_the_text(portable: vkrnn.Device) -> None:
    """The name is part of the text but not of the comparison of plans."""
    arrays = inputs(full("lstm", (5, 3, 7, 4), {}))
    named, plain = (vkrnn.plan(vkrnn.lstm, **arrays, name=name, device=portable) for name in ("layer 1", None))
    assert str(named).startswith("lstm 'layer 1'  T=5 ")
    assert str(plain).startswith("lstm  T=5 ")
    assert named == plain


def test_columns_are_separated(portable: vkrnn.Device) -> None:
    """A space follows every name in the text, however long it is."""
    case = full("lstm", (500, 64, 7, 4), {})
    planned = plan(case, portable, gradients=True)
    text = str(planned).splitlines()
    for name, role, _ in planned.buffers:
        assert any(line.split()[0:1] == [role] and f" {name} " in line for line in text), name
    before, body, after = dispatches(planned)
    for step in (*before, *body, *after):
        label, shader = f" {step['label']} ", f" {step['shader']}  groups"
        assert any(label in line and shader in line for line in text), step["label"]
