// Programs' own kernels: PTX that the simulator does not know by name.
#include "sim.h"

#define KERNEL(name, body)                                                                                \
    ".visible .entry " name "(.param .u64 out) {\n"                                                       \
    ".reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<9>; ld.param.u64 %rd0, [out];\n" body "\nret;\n}\n"

static const char HEAD[] = ".version 8.0\n.target sm_80\n.address_size 64\n";
static const char OWN[] =
    ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);\n"
    ".func down() { call.uni down, (); ret; }\n"
    KERNEL("illegal", "st.global.u32 [4096], 1;")
    KERNEL("misaligned", "st.global.u32 [%rd0+2], 1;")
    KERNEL("traps", "mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 7; @%p0 trap;")
    KERNEL("asserts", "call.uni __assertfail, (%rd1, %rd1, %r1, %rd1, %rd1);")
    KERNEL("recursive", "call.uni down, ();")
    KERNEL("deadlock", "mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 8; @%p0 bra HERE;"
                       "shfl.sync.up.b32 %r1, %r0, 1, 0, -1; ret; HERE: bar.sync 0;")
    KERNEL("waits", "AGAIN: ld.volatile.global.u32 %r1, [%rd0]; setp.eq.u32 %p0, %r1, 0; @%p0 bra AGAIN;"
                    "st.global.u32 [%rd0+4], %r1;")
    KERNEL("sleeps", "mov.u64 %rd1, %globaltimer; AGAIN: mov.u64 %rd2, %globaltimer; sub.u64 %rd3, %rd2, %rd1;"
                     "setp.lt.u64 %p0, %rd3, 5000000; @%p0 bra AGAIN; st.global.u64 [%rd0], %rd3;")
    KERNEL("product", "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%rd1}, {%rd1}, {%rd1}, {%rd1};")
    KERNEL("answer", "st.global.u32 [%rd0], 42;");

static void load(void) {
    static char text[8192];
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    snprintf(text, sizeof text, "%s%s", HEAD, OWN);
    OK(cuModuleLoadData(&module, text));
}

static CUresult launch_own(const char *name, CUstream stream, CUdeviceptr out) {
    void *params[] = {&out};
    return cuLaunchKernel(function(name), 1, 1, 1, 32, 1, 1, 0, stream, params, NULL);
}

static CUdeviceptr words(size_t count) {
    CUdeviceptr at;
    OK(cuMemAlloc_v2(&at, 4 * count));
    OK(cuMemsetD8_v2(at, 0, 4 * count));
    return at;
}

// The compiler's kernels, from the file that the environment names.
static void samples(void) {
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuModuleLoad(&module, getenv("SAMPLES")));
    enum { N = 1000, BLOCKS = 64 };
    float a[N], b[N], c[N];
    for (int i = 0; i < N; i++) a[i] = i * 0.25f, b[i] = 100.0f - i;
    CUdeviceptr at = words(N), bt = words(N), ct = words(N);
    OK(cuMemcpyHtoD_v2(at, a, sizeof a));
    OK(cuMemcpyHtoD_v2(bt, b, sizeof b));
    int n = N - 3;
    void *sum[] = {&at, &bt, &ct, &n};
    OK(cuLaunchKernel(function("vecAdd"), 8, 1, 1, 128, 1, 1, 0, NULL, sum, NULL));
    OK(cuMemcpyDtoH_v2(c, ct, sizeof c));
    for (int i = 0; i < N; i++) TRUE(c[i] == (i < n ? a[i] + b[i] : 0));
    // Dynamic shared memory and atomic operations.
    unsigned char data[N];
    unsigned bins[256], wanted[256] = {0};
    for (int i = 0; i < N; i++) data[i] = (unsigned char)(i * i), wanted[data[i]]++;
    OK(cuMemcpyHtoD_v2(at, data, sizeof data));
    CUdeviceptr counts = words(256);
    n = N;
    void *histogram[] = {&at, &n, &counts};
    OK(cuLaunchKernel(function("histogram"), 3, 1, 1, 96, 1, 1, 1024, NULL, histogram, NULL));
    OK(cuMemcpyDtoH_v2(bins, counts, sizeof bins));
    TRUE(!memcmp(bins, wanted, sizeof bins));
    // Constants, a variable with a first value, and the host's view of both.
    CUdeviceptr total, weights;
    size_t bytes;
    uint64_t value;
    OK(cuModuleGetGlobal_v2(&total, &bytes, module, "total"));
    EQ(bytes, 8);
    OK(cuMemcpyDtoH_v2(&value, total, 8));
    EQ(value, 5);
    OK(cuModuleGetGlobal_v2(&weights, &bytes, module, "weights"));
    float four[4] = {1, 2, 3, 4}, got[32];
    OK(cuMemcpyHtoD_v2(weights, four, sizeof four));
    OK(cuMemcpyHtoD_v2(bt, a, sizeof a));
    void *weigh[] = {&bt, &ct};
    OK(cuLaunchKernel(function("weigh"), 1, 1, 1, 32, 1, 1, 0, NULL, weigh, NULL));
    OK(cuMemcpyDtoH_v2(got, ct, sizeof got));
    for (int i = 0; i < 32; i++) TRUE(got[i] == a[i] * (float)(i % 4 + 1));
    OK(cuMemcpyDtoH_v2(&value, total, 8));
    EQ(value, 5 + 31 * 32 / 2);
    // Functions by address.
    unsigned results[64];
    void *indirect[] = {&ct};
    OK(cuLaunchKernel(function("indirect"), 1, 1, 1, 64, 1, 1, 0, NULL, indirect, NULL));
    OK(cuMemcpyDtoH_v2(results, ct, sizeof results));
    for (unsigned i = 0; i < 64; i++) EQ(results[i], i % 2 ? i * i : 2 * i);
    // All blocks wait for each other.
    CUdeviceptr arrived = words(1), out = words(BLOCKS * 33);
    void *meet[] = {&arrived, &out};
    OK(cuLaunchKernel(function("meet"), BLOCKS, 1, 1, 32, 1, 1, 0, NULL, meet, NULL));
    unsigned met[BLOCKS * 33];
    OK(cuMemcpyDtoH_v2(met, out, sizeof met));
    for (unsigned i = 0; i < BLOCKS * 32; i++) EQ(met[BLOCKS + i], (i / 32 + 1) % BLOCKS + 1);
}

static void fault(const char *name, CUresult code) {
    load();
    OK(launch_own(name, NULL, words(4)));
    IS(code, cuCtxSynchronize());
    IS(code, cuCtxSynchronize());
}

static void illegal(void) { fault("illegal", 700); }
static void misaligned(void) { fault("misaligned", 716); }
static void traps(void) { fault("traps", 719); }
static void asserts(void) { fault("asserts", 710); }
static void recursive(void) { fault("recursive", 714); }
static void deadlock(void) { fault("deadlock", 719); }

// A kernel polls host memory. Other work goes on meanwhile, and it ends when the host writes.
static void waits(void) {
    load();
    volatile unsigned *word;
    OK(cuMemHostAlloc((void **)&word, 64, 2));
    word[0] = word[1] = 0;
    CUstream first, second;
    OK(cuStreamCreate(&first, 1));
    OK(cuStreamCreate(&second, 1));
    OK(launch_own("waits", first, (CUdeviceptr)(uintptr_t)word));
    CUdeviceptr out = words(1);
    unsigned value;
    OK(launch_own("answer", second, out));
    OK(cuStreamSynchronize(second));
    OK(cuMemcpyDtoH_v2(&value, out, 4));
    EQ(value, 42);
    IS(600, cuStreamQuery(first));
    word[0] = 5;
    OK(cuStreamSynchronize(first));
    EQ(word[1], 5);
}

// The model's clock: a kernel that waits for a time takes it, one that does little takes little.
static void sleeps(void) {
    load();
    CUdeviceptr out = words(2);
    CUevent marks[3];
    float ms;
    uint64_t passed;
    for (int i = 0; i < 3; i++) OK(cuEventCreate(&marks[i], 0));
    OK(cuEventRecord(marks[0], NULL));
    OK(launch_own("sleeps", NULL, out));
    OK(cuEventRecord(marks[1], NULL));
    OK(cuMemcpyDtoH_v2(&passed, out, 8));
    OK(launch_own("answer", NULL, out));
    OK(cuCtxSynchronize());
    TRUE(passed >= 5000000 && passed < 5010000);
    // Between the marks the kernel may have waited for the host.
    OK(cuEventElapsedTime(&ms, marks[0], marks[1]));
    TRUE(ms > 4.99f);
}

// An unknown instruction is refused by name at the launch, and the context lives.
static void refused(void) {
    load();
    CUdeviceptr out = words(1);
    unsigned value;
    IS(801, launch_own("product", NULL, out)); // CUDA_ERROR_NOT_SUPPORTED
    OK(launch_own("answer", NULL, out));
    OK(cuMemcpyDtoH_v2(&value, out, 4));
    EQ(value, 42);
}

// A kernel of one text calls a function of another.
static void linked(void) {
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    char one[512], two[512];
    snprintf(one, sizeof one, "%s.extern .func (.reg .u32 r) six(.reg .u32 a);\n%s", HEAD,
             KERNEL("use", "call (%r1), six, (7); st.global.u32 [%rd0], %r1;"));
    snprintf(two, sizeof two, "%s.visible .func (.reg .u32 r) six(.reg .u32 a) { mul.lo.u32 r, a, 6; ret; }\n", HEAD);
    void *link;
    const void *image;
    OK(cuLinkCreate_v2(0, NULL, NULL, &link));
    OK(cuLinkAddData_v2(link, 1, one, strlen(one) + 1, "one", 0, NULL, NULL));
    OK(cuLinkAddData_v2(link, 1, two, strlen(two) + 1, "two", 0, NULL, NULL));
    OK(cuLinkComplete(link, &image, NULL));
    OK(cuModuleLoadData(&module, image));
    OK(cuLinkDestroy(link));
    CUdeviceptr out = words(1);
    unsigned value;
    OK(launch_own("use", NULL, out));
    OK(cuMemcpyDtoH_v2(&value, out, 4));
    EQ(value, 42);
}

CASES({"samples", samples}, {"illegal", illegal}, {"misaligned", misaligned}, {"traps", traps},
      {"asserts", asserts}, {"recursive", recursive}, {"deadlock", deadlock}, {"waits", waits},
      {"sleeps", sleeps}, {"refused", refused}, {"linked", linked})
