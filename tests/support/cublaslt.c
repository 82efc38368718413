// A cuBLASLt without a GPU, for tests beside cuda_driver.c, whose memory is the host's: it computes products. The
// environment variable FAKE_CUBLAS_FAIL=function:status lets a function fail. FAKE_CUBLAS_VERSION is its version of
// CUDA. FAKE_CUBLAS_REDUCTIONS lists the reduction schemes of the algorithms that it proposes. An algorithm works only
// on matrices that are aligned as the preference said. With FAKE_CUBLAS_IDLE, products compute nothing.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Status;

typedef struct {
    int compute, scale, transpose[2];  // of A and B
} Desc;

typedef struct {
    int type, batches;
    int64_t rows, columns, ld, batch;
} Layout;

typedef struct {
    uint64_t workspace;
    uint32_t reductions, alignment[4];
} Preference;

typedef struct {
    uint64_t data[8];  // the reduction scheme, the position in the list, and the alignment of A, B, C and D
} Algorithm;

typedef struct {
    Algorithm algorithm;
    size_t workspace;
    Status state;
    float waves;
    int reserved[4];
} Proposal;

static int handles, descriptors, heuristics, products;
static uint64_t chosen;
static char last[256];
static double* result;
static int64_t results;

static Status failure(const char* function) {
    const char* wanted = getenv("FAKE_CUBLAS_FAIL");
    char name[64];
    int status;
    if (wanted == NULL || sscanf(wanted, "%63[^:]:%d", name, &status) != 2) return 0;
    return strcmp(name, function) == 0 ? status : 0;
}

#define FUNCTION(name, parameters, ...)       \
    Status name parameters {                  \
        const Status failed = failure(#name); \
        if (failed) return failed;            \
        __VA_ARGS__;                          \
        return 0;                             \
    }

size_t cublasLtGetCudartVersion(void) {
    return getenv("FAKE_CUBLAS_VERSION") ? (size_t)atoi(getenv("FAKE_CUBLAS_VERSION")) : 13000;
}
const char* cublasLtGetStatusName(Status status) { return status == 14 ? "CUBLAS_STATUS_INTERNAL_ERROR" : "CUBLAS"; }
const char* cublasLtGetStatusString(Status status) { return status == 14 ? "an internal operation failed" : "a text"; }
FUNCTION(cublasLtCreate, (void** handle), ++handles; *handle = &handles)
FUNCTION(cublasLtDestroy, (void* handle), (void)handle; --handles)

FUNCTION(cublasLtMatmulDescCreate, (Desc * *made, int compute, int scale), *made = calloc(1, sizeof(Desc));
         (*made)->compute = compute; (*made)->scale = scale; ++descriptors)
FUNCTION(cublasLtMatmulDescDestroy, (Desc * desc), free(desc); --descriptors)
FUNCTION(cublasLtMatmulDescSetAttribute, (Desc * desc, int attribute, const void* value, size_t bytes),
         if (bytes != 4 || attribute < 3 || attribute > 4) return 7;
         memcpy(&desc->transpose[attribute - 3], value, bytes))

FUNCTION(cublasLtMatrixLayoutCreate, (Layout * *made, int type, uint64_t rows, uint64_t columns, int64_t ld),
         *made = calloc(1, sizeof(Layout));
         ** made = (Layout){type, 1, (int64_t)rows, (int64_t)columns, ld, 0}; ++descriptors;
         if (ld < (*made)->rows) return 7)
FUNCTION(cublasLtMatrixLayoutDestroy, (Layout * layout), free(layout); --descriptors)
FUNCTION(cublasLtMatrixLayoutSetAttribute, (Layout * layout, int attribute, const void* value, size_t bytes),
         if (attribute == 5 && bytes == 4) memcpy(&layout->batches, value, bytes);
         else if (attribute == 6 && bytes == 8) memcpy(&layout->batch, value, bytes); else return 7)

FUNCTION(cublasLtMatmulPreferenceCreate, (Preference * *made), *made = calloc(1, sizeof(Preference));
         ** made = (Preference){.reductions = 7, .alignment = {256, 256, 256, 256}}; ++descriptors)
FUNCTION(cublasLtMatmulPreferenceDestroy, (Preference * preference), free(preference); --descriptors)
FUNCTION(cublasLtMatmulPreferenceSetAttribute,
         (Preference * preference, int attribute, const void* value, size_t bytes),
         if (attribute == 1 && bytes == 8) memcpy(&preference->workspace, value, bytes);
         else if (attribute == 3 && bytes == 4) memcpy(&preference->reductions, value, bytes);
         else if (attribute >= 5 && attribute <= 8 && bytes == 4)
             memcpy(&preference->alignment[attribute - 5], value, bytes);
         else return 7)

FUNCTION(
    cublasLtMatmulAlgoGetHeuristic,
    (void* handle, Desc* desc, Layout* a, Layout* b, Layout* c, Layout* d, Preference* preference, int wanted,
     Proposal* proposed, int* found),
    (void)handle;
    (void)desc; (void)a; (void)b; (void)c; (void)d; ++heuristics;
    const char* reductions = getenv("FAKE_CUBLAS_REDUCTIONS"); if (reductions == NULL) reductions = "0"; int i = 0;
    for (; i < wanted && reductions[i] != '\0'; ++i) {
        memset(&proposed[i], 0, sizeof(Proposal));
        proposed[i].algorithm.data[0] = (uint64_t)(reductions[i] - '0');
        proposed[i].algorithm.data[1] = (uint64_t)i;
        for (int matrix = 0; matrix < 4; ++matrix)
            proposed[i].algorithm.data[2 + matrix] = preference->alignment[matrix];
        // An 8 stands for an algorithm without a reduction that needs more than the workspace.
        if (reductions[i] == '8') {
            proposed[i].algorithm.data[0] = 0;
            proposed[i].workspace = preference->workspace + 1;
        }
    }* found = i)
// FAKE_CUBLAS_FAIL lets it refuse all algorithms.
FUNCTION(cublasLtMatmulAlgoCheck,
         (void* handle, Desc* desc, Layout* a, Layout* b, Layout* c, Layout* d, const Algorithm* algorithm,
          Proposal* checked),
         (void)handle;
         (void)desc; (void)a; (void)b; (void)c; (void)d; memset(checked, 0, sizeof(Proposal));
         checked->algorithm = *algorithm)
FUNCTION(cublasLtMatmulAlgoConfigGetAttribute,
         (const Algorithm* algorithm, int attribute, void* value, size_t bytes, size_t* written),
         if (attribute != 3 || bytes != 4) return 7;
         *(uint32_t*)value = (uint32_t)algorithm->data[0]; *written = bytes)

// The types are float32, float64, float16 and bfloat16.
static double element(const void* at, int type, int64_t i) {
    if (type == 14) {
        const uint32_t bits = (uint32_t)((const uint16_t*)at)[i] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    return type == 2 ? (double)((const _Float16*)at)[i] : type == 1 ? ((const double*)at)[i] : ((const float*)at)[i];
}

static void store(void* at, int type, int64_t i, double value) {
    const float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    switch (type) {
        case 0: ((float*)at)[i] = narrow; break;
        case 1: ((double*)at)[i] = value; break;
        case 2: ((_Float16*)at)[i] = (_Float16)value; break;
        default: ((uint16_t*)at)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

// Returns whether the matrices of all batches have the alignment that algorithm->data[i] tells.
static int is_aligned(const void* matrix, const Layout* layout, const Algorithm* algorithm, int i) {
    const uint64_t bytes = layout->type == 1 ? 8 : layout->type == 0 ? 4 : 2;
    const uint64_t stride = layout->batches > 1 ? (uint64_t)layout->batch * bytes : 0;
    return algorithm->data[i] >= bytes && ((uintptr_t)matrix | stride) % algorithm->data[i] == 0;
}

FUNCTION(
    cublasLtMatmul,
    (void* handle, Desc* desc, const void* alpha, const void* a, Layout* a_layout, const void* b, Layout* b_layout,
     const void* beta, const void* c, Layout* c_layout, void* d, Layout* d_layout, const Algorithm* algorithm,
     void* workspace, size_t workspace_bytes, void* stream),
    (void)handle;
    (void)stream; if (!is_aligned(a, a_layout, algorithm, 2) || !is_aligned(b, b_layout, algorithm, 3) ||
                      !is_aligned(c, c_layout, algorithm, 4) || !is_aligned(d, d_layout, algorithm, 5) ||
                      (uintptr_t)workspace % 16 != 0) return 7;
    if (c != d || element(alpha, desc->scale, 0) != 1 || element(beta, desc->scale, 0) != 0) return 7;
    memset(workspace, 1, workspace_bytes); chosen = algorithm->data[1]; ++products; const int64_t m = d_layout->rows;
    const int64_t n = d_layout->columns; const int64_t k = desc->transpose[0] ? a_layout->rows : a_layout->columns;
    snprintf(last, sizeof last, "compute %d types %d %d %d", desc->compute, a_layout->type, b_layout->type,
             d_layout->type);
    if (getenv("FAKE_CUBLAS_IDLE") != NULL) return 0;
    results = m * n * d_layout->batches; result = realloc(result, (size_t)results * sizeof(double));
    for (int64_t batch = 0; batch < d_layout->batches; ++batch) {
        for (int64_t j = 0; j < n; ++j) {
            for (int64_t i = 0; i < m; ++i) {
                double sum = 0;
                for (int64_t l = 0; l < k; ++l) {
                    const int64_t at = desc->transpose[0] ? l + i * a_layout->ld : i + l * a_layout->ld;
                    const int64_t bt = desc->transpose[1] ? j + l * b_layout->ld : l + j * b_layout->ld;
                    sum += element(a, a_layout->type, at + batch * a_layout->batch) *
                           element(b, b_layout->type, bt + batch * b_layout->batch);
                }
                const int64_t to = i + j * d_layout->ld + batch * d_layout->batch;
                store(d, d_layout->type, to, sum);
                result[i + m * (j + n * batch)] = sum;
            }
        }
    })

// For tests.
int fake_cublas_handles(void) { return handles; }
int fake_cublas_descriptors(void) { return descriptors; }
int fake_cublas_heuristics(void) { return heuristics; }
int fake_cublas_products(void) { return products; }
int fake_cublas_chosen(void) { return (int)chosen; }  // position of the algorithm of the last product
const char* fake_cublas_last(void) { return last; }   // its types
int64_t fake_cublas_results(void) { return results; }
const double* fake_cublas_result(void) { return result; }  // its elements, in the order of the caller's rows
