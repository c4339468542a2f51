/* A program with kernels of its own: it adds two vectors, multiplies two matrices, and asks each
 * block for its SM. */
#include "census.h"

/* Each block's first thread writes the number of its SM, and one. */
static const char PLACES[] =
    ".version 7.8\n.target sm_70\n.address_size 64\n"
    ".visible .entry places(.param .u64 out) {\n"
    "  .reg .b32 %r<5>; .reg .b64 %rd<4>; .reg .pred %p;\n"
    "  mov.u32 %r1, %tid.x; setp.ne.u32 %p, %r1, 0; @%p ret;\n"
    "  ld.param.u64 %rd1, [out]; cvta.to.global.u64 %rd1, %rd1; mov.u32 %r2, %ctaid.x;\n"
    "  mul.wide.u32 %rd2, %r2, 4; add.u64 %rd3, %rd1, %rd2; mov.u32 %r3, %smid; add.u32 %r4, %r3, 1;\n"
    "  st.global.u32 [%rd3], %r4; ret;\n}\n";

static fn_launch launch;

static void *function(const char *text, const char *name) {
    void *module, *found;
    OK("cuModuleLoadData", CALL(int (*)(void **, const void *), "cuModuleLoadData")(&module, text));
    OK("cuModuleGetFunction", CALL(int (*)(void **, void *, const char *), "cuModuleGetFunction")(&found, module, name));
    return found;
}

static address vector(const void *from, size_t bytes) {
    address at;
    OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&at, bytes));
    OK("cuMemcpyHtoD_v2", CALL(int (*)(address, const void *, size_t), "cuMemcpyHtoD_v2")(at, from, bytes));
    return at;
}

static void read_back(void *to, address from, size_t bytes) {
    wait_all();
    OK("cuMemcpyDtoH_v2", CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2")(to, from, bytes));
}

static void add(const char *samples) {
    enum { N = 100000, THREADS = 256 };
    static float a[N], b[N], c[N];
    for (int i = 0; i < N; i++) a[i] = i * 0.5f, b[i] = 3.0f - i, c[i] = -1;
    address at = vector(a, sizeof a), bt = vector(b, sizeof b), ct = vector(c, sizeof c);
    int n = N - 10, wrong = 0;
    void *parameters[4] = {&at, &bt, &ct, &n};
    OK("cuLaunchKernel", launch(function(samples, "vecAdd"), (N + THREADS - 1) / THREADS, 1, 1, THREADS, 1, 1, 0, NULL, parameters, NULL));
    read_back(c, ct, sizeof c);
    for (int i = 0; i < N; i++) wrong += c[i] != (i < n ? a[i] + b[i] : -1);
    printf("vecAdd: %d of %d wrong\n", wrong, N);
}

static void multiply(const char *samples) {
    enum { N = 70, TILE = 16 };
    static float a[N * N], b[N * N], c[N * N];
    for (int i = 0; i < N * N; i++) a[i] = i % 13 - 6, b[i] = i % 7 - 3;
    address at = vector(a, sizeof a), bt = vector(b, sizeof b), ct = vector(c, sizeof c);
    int n = N, wrong = 0;
    void *parameters[4] = {&at, &bt, &ct, &n};
    int blocks = (N + TILE - 1) / TILE;
    OK("cuLaunchKernel", launch(function(samples, "matmul"), blocks, blocks, 1, TILE, TILE, 1, 0, NULL, parameters, NULL));
    read_back(c, ct, sizeof c);
    for (int row = 0; row < N; row++)
        for (int column = 0; column < N; column++) {
            float sum = 0;
            for (int k = 0; k < N; k++) sum += a[row * N + k] * b[k * N + column];
            wrong += c[row * N + column] != sum;
        }
    printf("matmul: %d of %d wrong\n", wrong, N * N);
}

static void places(void) {
    enum { BLOCKS = 2000 };
    static unsigned found[BLOCKS];
    char seen[SMS_MAX] = {0};
    address out = vector(found, sizeof found);
    void *parameters[1] = {&out};
    OK("cuLaunchKernel", launch(function(PLACES, "places"), BLOCKS, 1, 1, 128, 1, 1, 0, NULL, parameters, NULL));
    read_back(found, out, sizeof found);
    for (int i = 0; i < BLOCKS; i++) {
        if (found[i] == 0 || found[i] > SMS_MAX) die("a block left no SM", i);
        seen[found[i] - 1] = 1;
    }
    printf("sms");
    for (int sm = 0; sm < SMS_MAX; sm++)
        if (seen[sm]) printf(" %d", sm);
    printf("\n");
}

int main(int count, char **arguments) {
    (void)count;
    start(1);
    launch = CALL(fn_launch, "cuLaunchKernel");
    const char *samples = kernels_in(arguments[1]);
    add(samples);
    multiply(samples);
    places();
    return 0;
}
