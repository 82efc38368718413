// What the kernels use of GLSL, for CUDA C++. A kernel's file compiles without a change in a source like this:
//   #include "cuda/glsl.cuh"
//   struct Kernel {
//   #include "portable/reduce.comp"
//   };
//   #include "cuda/entry.cuh"
// A driver also needs a chosen_cell.glsl that includes its cell. VKRNN_KERNEL defines the CUDA kernel's name.
// VKRNN_CONSTANTS defines the values of the specialization constants 0, 1, 2, ..., separated by commas. A constant
// whose value is negative or absent has its default. It needs C++20, a compute capability of 8.0, and no header.
#ifndef VKRNN_GLSL_CUH
#define VKRNN_GLSL_CUH
// These files are included here because a class, such as Kernel above, cannot contain their namespaces.
#include "matrices/matrices_abi.h"
#include "portable/portable_abi.h"
#include "slices/slices_abi.h"
#include "split/split_abi.h"
#include "tiles/tiles_abi.h"
using namespace vkrnn::abi;

#define DEVICE __device__ __forceinline__

typedef unsigned short uint16_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

#ifndef VKRNN_CONSTANTS
#define VKRNN_CONSTANTS -1
#endif
constexpr long long given_constants[] = {VKRNN_CONSTANTS};
template <class T> DEVICE constexpr T as_constant(uint word) { return T(word); }
template <> DEVICE constexpr float as_constant<float>(uint word) { return __builtin_bit_cast(float, word); }
template <class T> DEVICE constexpr T specialized(uint id, T otherwise) {
    constexpr uint count = sizeof(given_constants) / sizeof(given_constants[0]);
    return id < count && given_constants[id] >= 0 ? as_constant<T>(uint(given_constants[id])) : otherwise;
}

// A literal of a double, as in GLSL.
DEVICE constexpr double operator""lf(long double value) { return double(value); }

// Half-precision numbers by their bits, so that the compiler sees through packing and unpacking.
struct float16_t {
    uint16_t bits;
    float16_t() = default;
    DEVICE explicit float16_t(float a) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(a)); }
    DEVICE explicit float16_t(uint a) : float16_t(float(a)) {}
    DEVICE explicit operator float() const {
        float a;
        asm("cvt.f32.f16 %0, %1;" : "=f"(a) : "h"(bits));
        return a;
    }
    DEVICE explicit operator uint() const { return uint(float(*this)); }
};
DEVICE float16_t half_of(uint bits) {
    float16_t a;
    a.bits = uint16_t(bits);
    return a;
}

// Returns a pointer to global memory. Without the hint loads and stores would be generic, which takes up to a sixth
// longer. Single words and GENERIC_REFERENCE go without it: with it, the optimizer of NVRTC 13.0 does not terminate for
// the persistent kernels, for the float64 tiles of calls with lengths and for backward tiles of an RNN in a 16-bit type.
template <class T> DEVICE T* global(Address at) { return static_cast<T*>(__cvta_global_to_generic(at)); }
template <> DEVICE uint* global<uint>(Address at) { return reinterpret_cast<uint*>(at); }
template <> DEVICE int* global<int>(Address at) { return reinterpret_cast<int*>(at); }

// ---- vectors -------------------------------------------------------------------------------------------------------
template <class T, int n> struct vec;
template <class T> struct alignas(2 * sizeof(T)) vec<T, 2> {
    T x, y;
    vec() = default;
    DEVICE vec(T a, T b) : x(a), y(b) {}
};
template <class T> struct alignas(16) vec<T, 4> {
    T x, y, z, w;
    vec() = default;
    DEVICE explicit vec(T a) : x(a), y(a), z(a), w(a) {}
    DEVICE vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
    DEVICE T& operator[](uint i) { return (&x)[i]; }
    DEVICE const T& operator[](uint i) const { return (&x)[i]; }
};
using vec2 = vec<float, 2>;
using uvec2 = vec<uint, 2>;
using f16vec2 = vec<float16_t, 2>;
using vec4 = vec<float, 4>;
using dvec4 = vec<double, 4>;
using uvec4 = vec<uint, 4>;
template <class T> DEVICE vec<T, 4> operator*(T a, vec<T, 4> b) { return {a * b.x, a * b.y, a * b.z, a * b.w}; }
template <class T> DEVICE vec<T, 4>& operator+=(vec<T, 4>& a, vec<T, 4> b) {
    a.x += b.x;
    a.y += b.y;
    a.z += b.z;
    a.w += b.w;
    return a;
}
template <class T> DEVICE T dot(vec<T, 4> a, vec<T, 4> b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

// ---- functions -----------------------------------------------------------------------------------------------------
template <class T, int n> DEVICE void copy_array(T (&to)[n], const T (&from)[n]) {
    _Pragma("unroll") for (int i = 0; i < n; ++i) to[i] = from[i];
}
DEVICE float uintBitsToFloat(uint a) { return __uint_as_float(a); }
DEVICE uint floatBitsToUint(float a) { return __float_as_uint(a); }
DEVICE vec4 uintBitsToFloat(uvec4 a) {
    return {__uint_as_float(a.x), __uint_as_float(a.y), __uint_as_float(a.z), __uint_as_float(a.w)};
}
DEVICE uvec4 floatBitsToUint(vec4 a) {
    return {__float_as_uint(a.x), __float_as_uint(a.y), __float_as_uint(a.z), __float_as_uint(a.w)};
}
DEVICE double packDouble2x32(uvec2 a) { return __hiloint2double(int(a.y), int(a.x)); }
DEVICE uvec2 unpackDouble2x32(double a) { return {uint(__double2loint(a)), uint(__double2hiint(a))}; }
DEVICE uint packHalf2x16(vec2 a) {
    uint packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(a.y), "f"(a.x));
    return packed;
}
DEVICE f16vec2 unpackFloat2x16(uint a) { return {half_of(a & 0xffffu), half_of(a >> 16)}; }
DEVICE vec2 unpackHalf2x16(uint a) { return {float(half_of(a & 0xffffu)), float(half_of(a >> 16))}; }
template <class T> struct Same {
    using Type = T;
};
template <class T> DEVICE T clamp(T a, typename Same<T>::Type low, typename Same<T>::Type high) {
    return min(max(a, low), high);
}
DEVICE float approximate_exp2(float a) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(a));
    return power;
}
#define exp2 approximate_exp2   // CUDA's own spends more instructions on subnormal results than GLSL asks for
DEVICE float approximate_log2(float a) {
    float exponent;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(exponent) : "f"(a));
    return exponent;
}
#define log2 approximate_log2
DEVICE float reciprocal(float a) {
    float found;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(a));
    return found;
}
DEVICE float step(float edge, float a) { return a < edge ? 0.0f : 1.0f; }
DEVICE double step(double edge, double a) { return a < edge ? 0.0 : 1.0; }

// ---- workgroups and subgroups --------------------------------------------------------------------------------------
struct Three {
    uint x, y, z;
};
// Returns the memory of one variable, which `Tag` names.
template <class T, class Tag> DEVICE T& shared_memory() {
    __shared__ T memory;
    return memory;
}
// Returns the memory whose size each launch gives.
extern __shared__ uint4 sized_by_launch[];
template <class T> DEVICE T& launch_shared_memory() { return *reinterpret_cast<T*>(sized_by_launch); }
DEVICE void barrier() { __syncthreads(); }
DEVICE void subgroupBarrier() { __syncwarp(); }
DEVICE void subgroupMemoryBarrierShared() { __syncwarp(); }
template <class T> DEVICE T subgroupShuffleXor(T a, uint apart) { return __shfl_xor_sync(~0u, a, apart); }
template <class T> DEVICE T subgroupBroadcast(T a, uint lane) { return __shfl_sync(~0u, a, lane); }
template <class T> DEVICE vec<T, 4> subgroupBroadcast(vec<T, 4> a, uint lane) {
    return {subgroupBroadcast(a.x, lane), subgroupBroadcast(a.y, lane), subgroupBroadcast(a.z, lane),
            subgroupBroadcast(a.w, lane)};
}
DEVICE uint subgroupMax(uint a) { return __reduce_max_sync(~0u, a); }
DEVICE bool subgroupElect() { return threadIdx.x % 32 == 0; }
DEVICE bool subgroupAll(bool a) { return __all_sync(~0u, a); }

// ---- memory that workgroups share ----------------------------------------------------------------------------------
// These functions ignore the scope and the memory order that they are given, and use those that the kernels ask for.
enum { gl_ScopeDevice, gl_ScopeWorkgroup, gl_ScopeSubgroup };
enum {
    gl_StorageSemanticsNone = 0, gl_StorageSemanticsBuffer = 64, gl_StorageSemanticsShared = 256,
    gl_SemanticsRelaxed = 0, gl_SemanticsAcquire = 2, gl_SemanticsRelease = 4, gl_SemanticsAcquireRelease = 8,
    gl_SemanticsMakeAvailable = 8192, gl_SemanticsMakeVisible = 16384
};
DEVICE uint atomicMax(uint& a, uint b) { return ::atomicMax(&a, b); }
DEVICE void atomicAdd(uint& a, uint b, int, int, int) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(&a), "r"(b) : "memory");
}
DEVICE void atomicOr(uint& a, uint b, int, int, int) {
    asm volatile("red.relaxed.gpu.global.or.b32 [%0], %1;" ::"l"(&a), "r"(b) : "memory");
}
DEVICE uint atomicLoad(uint& a, int, int, int) {
    uint found;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(&a) : "memory");
    return found;
}
DEVICE void atomicStore(uint& a, uint b, int, int, int) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(&a), "r"(b) : "memory");
}
DEVICE void memoryBarrier(int, int, int) { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
DEVICE void controlBarrier(int, int, int, int) { __syncthreads(); }
// Words that other workgroups may store at the same time.
template <class T> struct Volatile;
template <> struct Volatile<uvec4> {
    Address at;
    DEVICE operator uvec4() const {
        uvec4 found;
        asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
                     : "l"(at)
                     : "memory");
        return found;
    }
};

template <> struct Volatile<uint16_t> {
    Address at;
    DEVICE void operator=(uint16_t value) const {
        asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(at), "h"(value) : "memory");
    }
};

// ---- matrix units --------------------------------------------------------------------------------------------------
// Matrices of 16 x 16, whose products are two of the instruction's 16 x 8. The elements of an invocation are in the
// order of its fragments.
enum {
    gl_MatrixUseA, gl_MatrixUseB, gl_MatrixUseAccumulator,
    gl_CooperativeMatrixLayoutRowMajor, gl_CooperativeMatrixLayoutColumnMajor
};
template <int use> DEVICE uint matrix_row(uint i) {
    uint group = threadIdx.x % 32 / 4, in_group = threadIdx.x % 4;
    return use == gl_MatrixUseB ? 2 * in_group + (i & 1) + (i >> 1 & 1) * 8 : group + (i >> 1 & 1) * 8;
}
template <int use> DEVICE uint matrix_column(uint i) {
    uint group = threadIdx.x % 32 / 4, in_group = threadIdx.x % 4;
    return use == gl_MatrixUseB ? group + (i >> 2) * 8 : 2 * in_group + (i & 1) + (i >> 2) * 8;
}
template <class T, int scope, uint rows, uint columns, int use_> struct coopmat {
    static constexpr int use = use_;
    using Element = T;
    T elements[8];
    coopmat() = default;
    DEVICE explicit coopmat(float a) { _Pragma("unroll") for (int i = 0; i < 8; ++i) elements[i] = T(a); }
    DEVICE T& operator[](uint i) { return elements[i]; }
    DEVICE T get(uint i) const { return elements[i]; }
    DEVICE coopmat operator+(const coopmat& b) const {
        coopmat sum;
        _Pragma("unroll") for (int i = 0; i < 8; ++i) sum.elements[i] = elements[i] + b.elements[i];
        return sum;
    }
    DEVICE coopmat operator*(T b) const {
        coopmat product;
        _Pragma("unroll") for (int i = 0; i < 8; ++i) product.elements[i] = elements[i] * b;
        return product;
    }
};
// Half-precision numbers are two in a register.
template <int scope, uint rows, uint columns, int use_> struct coopmat<float16_t, scope, rows, columns, use_> {
    static constexpr int use = use_;
    using Element = float16_t;
    uint words[4];
    struct Reference {
        uint& word;
        bool high;
        DEVICE void operator=(float16_t a) {
            word = high ? (word & 0xffffu) | uint(a.bits) << 16 : (word & 0xffff0000u) | a.bits;
        }
        DEVICE operator float16_t() const { return half_of(high ? word >> 16 : word & 0xffffu); }
        DEVICE explicit operator uint() const { return uint(float16_t(*this)); }
    };
    coopmat() = default;
    DEVICE Reference operator[](uint i) { return {words[i / 2], i % 2 != 0}; }
    DEVICE float16_t get(uint i) const { return half_of(i % 2 != 0 ? words[i / 2] >> 16 : words[i / 2] & 0xffffu); }
    DEVICE coopmat operator*(float16_t b) const {
        coopmat product;
        uint both = b.bits | uint(b.bits) << 16;
        _Pragma("unroll") for (int i = 0; i < 4; ++i)
            asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product.words[i]) : "r"(words[i]), "r"(both));
        return product;
    }
};
template <int scope, uint side>
DEVICE coopmat<float, scope, side, side, gl_MatrixUseAccumulator>
coopMatMulAdd(const coopmat<float16_t, scope, side, side, gl_MatrixUseA>& a,
              const coopmat<float16_t, scope, side, side, gl_MatrixUseB>& b,
              coopmat<float, scope, side, side, gl_MatrixUseAccumulator> c) {
    static_assert(side == 16);
    _Pragma("unroll") for (int half = 0; half < 2; ++half) {
        float* sums = c.elements + 4 * half;
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(b.words[2 * half]),
              "r"(b.words[2 * half + 1]));
    }
    return c;
}
template <class M, class E>
DEVICE auto matrix_element(const M&, uint i, E* memory, uint offset, uint stride, int layout) {
    using T = typename M::Element;
    uint row = matrix_row<M::use>(i), column = matrix_column<M::use>(i);
    bool row_major = layout == gl_CooperativeMatrixLayoutRowMajor;
    uint major = row_major ? row : column, minor = row_major ? column : row;
    return reinterpret_cast<T*>(memory) + (offset + major * stride) * (sizeof(E) / sizeof(T)) + minor;
}
template <class M, class E> DEVICE void coopMatStore(const M& m, E* memory, uint offset, uint stride, int layout) {
    _Pragma("unroll") for (int i = 0; i < 8; ++i) *matrix_element(m, i, memory, offset, stride, layout) = m.get(i);
}
template <class M, class E> DEVICE void coopMatLoad(M& m, E* memory, uint offset, uint stride, int layout) {
    _Pragma("unroll") for (int i = 0; i < 8; ++i) m[i] = *matrix_element(m, i, memory, offset, stride, layout);
}
// Sums in shared memory are in row-major order, where two elements of an invocation are neighbours.
template <int scope, uint side> using Sums = coopmat<float, scope, side, side, gl_MatrixUseAccumulator>;
template <int scope, uint side>
DEVICE void coopMatStore(const Sums<scope, side>& m, vec4* memory, uint offset, uint stride, int layout) {
    _Pragma("unroll") for (int i = 0; i < 8; i += 2)
        *reinterpret_cast<vec2*>(matrix_element(m, i, memory, offset, stride, layout)) = {m.get(i), m.get(i + 1)};
}
template <int scope, uint side>
DEVICE void coopMatLoad(Sums<scope, side>& m, vec4* memory, uint offset, uint stride, int layout) {
    _Pragma("unroll") for (int i = 0; i < 8; i += 2) {
        vec2 pair = *reinterpret_cast<vec2*>(matrix_element(m, i, memory, offset, stride, layout));
        m[i] = pair.x;
        m[i + 1] = pair.y;
    }
}

#endif
