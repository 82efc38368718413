// What the words of common/language.glsl mean in CUDA C++, where a kernel's file is the body of a class `Kernel`: what
// GLSL has for each invocation, outside of functions too, is then a member. See glsl.cuh.
#ifndef VKRNN_LANGUAGE_CUH
#define VKRNN_LANGUAGE_CUH

#define CONSTANT static constexpr
#define SPECIALIZED(id, type, name, value) static constexpr type name = specialized<type>(id, value);
#define WORKGROUP_SIZE(n) static constexpr uint workgroup_size = n;
#define WORKGROUP_SIZE_ID(id) static constexpr uint workgroup_size = specialized<uint>(id, 1);
#define PUSH_CONSTANTS(type, name) \
    using Push = type;             \
    const Push& name;              \
    INLINE explicit Kernel(const Push& given) : name(given) {}
#define REFERENCE(name, type, member, bytes)                            \
    struct name {                                                       \
        type& member;                                                   \
        INLINE explicit name(Address at) : member(*global<type>(at)) {} \
    };
#define READONLY_REFERENCE(name, type, member, bytes)                   \
    struct name {                                                       \
        const type& member;                                             \
        INLINE explicit name(Address at) : member(*global<type>(at)) {} \
    };
#define VOLATILE_REFERENCE(name, type, member, bytes)    \
    struct name {                                        \
        Volatile<type> member;                           \
        INLINE explicit name(Address at) : member{at} {} \
    };
#define GENERIC_REFERENCE(name, type, member, bytes)                               \
    struct name {                                                                  \
        type& member;                                                              \
        INLINE explicit name(Address at) : member(*reinterpret_cast<type*>(at)) {} \
    };
#define ARRAY_REFERENCE(name, type, member, bytes)                     \
    struct name {                                                      \
        type* member;                                                  \
        INLINE explicit name(Address at) : member(global<type>(at)) {} \
    };
// The struct is a parameter of the CUDA kernel, in constant memory: see entry.cuh.
#define PARAMETERS(name, type)                                                           \
    struct name {                                                                        \
        const type& given;                                                               \
        INLINE explicit name(Address at) : given(*reinterpret_cast<const type*>(at)) {}  \
    };
#define params_of(p) p.given
#define SHARED_ARRAY(type, name, size) \
    struct shared_tag_##name;          \
    using shared_##name = type size;   \
    shared_##name& name = shared_memory<shared_##name, shared_tag_##name>();
#define LAUNCH_SHARED_ARRAY(type, name, size) \
    using shared_##name = type size;          \
    shared_##name& name = launch_shared_memory<shared_##name>();
#define SHARED(type, name) SHARED_ARRAY(type, name, )
#define INLINE __device__ __forceinline__
#define DECLARE(function)   // in a class, functions may follow their calls
#define OUT(type) type&
#define INOUT(type) type&
#define out
#define inout
#define COPY(to, from) copy_array(to, from)
#define UNROLL _Pragma("unroll")
#define precise
#define main INLINE run

// GLSL's built-in variables. A workgroup is linear.
#define gl_WorkGroupID (Three{blockIdx.x, blockIdx.y, blockIdx.z})
#define gl_WorkGroupSize (Three{workgroup_size, 1, 1})
#define gl_LocalInvocationID (Three{threadIdx.x, 0, 0})
#define gl_LocalInvocationIndex (threadIdx.x)
#define gl_SubgroupSize 32u
#define gl_SubgroupID (threadIdx.x / 32u)
#define gl_SubgroupInvocationID (threadIdx.x % 32u)

#endif
