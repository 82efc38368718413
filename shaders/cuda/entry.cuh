// The CUDA kernel, named VKRNN_KERNEL. The kernel's file comes first, as the body of the class `Kernel`: see glsl.cuh.
#undef main
#undef out
#undef inout

#ifdef VKRNN_STEP_GLSL
// The parameters of a time loop are a second parameter of the kernel. In constant memory, no barrier or store makes the
// compiler load them again.
extern "C" __global__ void __launch_bounds__(Kernel::workgroup_size)
    VKRNN_KERNEL(const StepPush push, const __grid_constant__ StepParams params) {
    StepPush given = push;
    given.params = reinterpret_cast<Address>(&params);
    Kernel(given).run();
}
#else
extern "C" __global__ void __launch_bounds__(Kernel::workgroup_size) VKRNN_KERNEL(const Kernel::Push push) {
    Kernel(push).run();
}
#endif
