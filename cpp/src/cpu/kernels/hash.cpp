// XXH3_128bits for each instruction set. xxHash's header chooses the instruction set when it is compiled. Its parts for
// the x86 ones are put together here, as in xxHash's own file xxh_x86dispatch.c.
#include "cpu/work/hash.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define XXH_X86DISPATCH
#define XXH_DISPATCH_AVX2 1
#define XXH_DISPATCH_AVX512 1
#define XXH_TARGET_SSE2
#define XXH_TARGET_AVX2 __attribute__((target("avx2")))
#define XXH_TARGET_AVX512 __attribute__((target("avx512f")))
#endif
#define XXH_INLINE_ALL
// After these macros:
#include "xxhash.h"

namespace vkrnn::cpu {
namespace {

Hash hash(std::span<const std::byte> bytes) {
    const XXH128_hash_t found = XXH3_128bits(bytes.data(), bytes.size());
    return {found.low64, found.high64};
}

#if defined(__x86_64__)
// The accumulators as xxHash computes them. Its own functions load each vector of the input twice, and loads are what
// Zen 4 runs short of: these take 0.87 (AVX-512) and 0.93 (AVX2) of their time.
XXH_TARGET_AVX2 XXH_FORCE_INLINE void accumulate_avx2(xxh_u64* XXH_RESTRICT accumulators,
                                                      const xxh_u8* XXH_RESTRICT input,
                                                      const xxh_u8* XXH_RESTRICT secret, std::size_t stripes) {
    auto* const sums = reinterpret_cast<__m256i*>(accumulators);
    for (std::size_t i = 0; i < stripes; ++i)
        for (int half = 0; half < 2; ++half) {
            __m256i data = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(input + i * XXH_STRIPE_LEN) + half);
            __asm__("" : "+x"(data));  // keeps it in a register
            const __m256i key = _mm256_xor_si256(
                data,
                _mm256_loadu_si256(reinterpret_cast<const __m256i*>(secret + i * XXH_SECRET_CONSUME_RATE) + half));
            const __m256i product = _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32));
            const __m256i swapped = _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));
            sums[half] = _mm256_add_epi64(product, _mm256_add_epi64(sums[half], swapped));
        }
}

XXH_TARGET_AVX512 XXH_FORCE_INLINE void accumulate_avx512(xxh_u64* XXH_RESTRICT accumulators,
                                                          const xxh_u8* XXH_RESTRICT input,
                                                          const xxh_u8* XXH_RESTRICT secret, std::size_t stripes) {
    auto* const sum = reinterpret_cast<__m512i*>(accumulators);
    for (std::size_t i = 0; i < stripes; ++i) {
        __m512i data = _mm512_loadu_si512(input + i * XXH_STRIPE_LEN);
        __asm__("" : "+v"(data));
        const __m512i key = _mm512_xor_si512(data, _mm512_loadu_si512(secret + i * XXH_SECRET_CONSUME_RATE));
        const __m512i product = _mm512_mul_epu32(key, _mm512_srli_epi64(key, 32));
        const __m512i swapped = _mm512_shuffle_epi32(data, static_cast<_MM_PERM_ENUM>(_MM_SHUFFLE(1, 0, 3, 2)));
        *sum = _mm512_add_epi64(product, _mm512_add_epi64(*sum, swapped));
    }
}

// XXH3 hashes short inputs in another way, which uses no vectors. GCC 12 does not clear the upper halves of the vector
// registers at the end of functions with a target attribute, which makes the SSE code of others slow.
#define VKRNN_HASH(suffix, target)                                                                     \
    target Hash hash_##suffix(std::span<const std::byte> bytes) {                                      \
        if (bytes.size() <= XXH3_MIDSIZE_MAX) return hash(bytes);                                      \
        const XXH128_hash_t found =                                                                    \
            XXH3_hashLong_128b_internal(bytes.data(), bytes.size(), XXH3_kSecret, sizeof XXH3_kSecret, \
                                        &accumulate_##suffix, &XXH3_scrambleAcc_##suffix);             \
        _mm256_zeroupper();                                                                            \
        return {found.low64, found.high64};                                                            \
    }
VKRNN_HASH(avx2, XXH_TARGET_AVX2)
VKRNN_HASH(avx512, XXH_TARGET_AVX512)
#endif

}  // namespace

HashFunction find_hash([[maybe_unused]] const Target& target) {
#if defined(__x86_64__)
    if (target.name == "avx512") return &hash_avx512;
    if (target.name == "avx2") return &hash_avx2;
#endif
    return &hash;
}

}  // namespace vkrnn::cpu
