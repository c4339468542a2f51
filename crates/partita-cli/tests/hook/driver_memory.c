/* What the driver takes for itself, as asked: `l MIB` loads a module with a variable of that size, `y MIB` the same as a library whose kernel is
 * launched (the driver loads it then), `u N` unloads the Nth of either, `a BYTES` allocates, `k KIB` launches a kernel with that much of a stack. Each
 * answer is the driver's code and the free bytes. */
#include "cuda.h"

typedef int (*fn_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

#define MIB ((size_t)1 << 20)

static struct { int is_library; void *handle; } loaded[16];
static int count;

static const char *with_variable(size_t bytes) {
    static char text[512];
    snprintf(text, sizeof text,
             ".version 7.0\n.target sm_80\n.address_size 64\n.visible .global .align 4 .b8 big[%zu];\n"
             ".visible .entry touch()\n{\n.reg .b64 %%a;\n.reg .b32 %%v;\nmov.u64 %%a, big;\nld.global.u32 %%v, [%%a];\nst.global.u32 [%%a], %%v;\nret;\n}\n",
             bytes);
    return text;
}

static const char *with_stack(size_t bytes) {
    static char text[1024];
    snprintf(text, sizeof text,
             ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry deep(.param .u64 to)\n{\n.local .align 8 .b8 depth[%zu];\n"
             ".reg .b64 %%a, %%b, %%to;\n.reg .b32 %%t, %%v;\nmov.u32 %%t, %%tid.x;\nmov.u64 %%a, depth;\ncvt.u64.u32 %%b, %%t;\nadd.u64 %%a, %%a, %%b;\n"
             "st.local.u8 [%%a], %%t;\nld.local.u8 %%v, [%%a];\nld.param.u64 %%to, [to];\nst.global.u32 [%%to], %%v;\nret;\n}\n",
             bytes);
    return text;
}

static int launch(void *kernel, void **parameters) {
    int code = CALL(fn_launch, "cuLaunchKernel")(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL);
    return code ? code : CALL(int (*)(void), "cuCtxSynchronize")();
}

static int load(size_t bytes) { return CALL(fn_pp, "cuModuleLoadData")(&loaded[count].handle, (void *)with_variable(bytes)); }

static int load_lazily(size_t bytes) {
    void *kernel;
    int code = CALL(int (*)(void **, const void *, void *, void *, unsigned, void *, void *, unsigned), "cuLibraryLoadData")(
        &loaded[count].handle, with_variable(bytes), NULL, NULL, 0, NULL, NULL, 0);
    if (code) return code;
    loaded[count].is_library = 1;
    code = CALL(int (*)(void **, void *, const char *), "cuLibraryGetKernel")(&kernel, loaded[count].handle, "touch");
    return code ? code : launch(kernel, NULL);
}

static int deep(size_t bytes) {
    void *module, *kernel;
    static address to;
    void *parameters[] = {&to};
    OK("cuModuleLoadData", CALL(fn_pp, "cuModuleLoadData")(&module, (void *)with_stack(bytes)));
    OK("cuModuleGetFunction", CALL(int (*)(void **, void *, const char *), "cuModuleGetFunction")(&kernel, module, "deep"));
    OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&to, 4));
    int code = launch(kernel, parameters);
    OK("cuMemFree_v2", CALL(int (*)(address), "cuMemFree_v2")(to));
    OK("cuModuleUnload", CALL(fn_p, "cuModuleUnload")(module));
    return code;
}

int main(void) {
    char what;
    size_t number, left, total;
    address at;
    start(0);
    while (scanf(" %c %zu", &what, &number) == 2) {
        int code = 0;
        switch (what) {
        case 'l': code = load(number * MIB); break;
        case 'y': code = load_lazily(number * MIB); break;
        case 'u': code = CALL(fn_p, loaded[number].is_library ? "cuLibraryUnload" : "cuModuleUnload")(loaded[number].handle); break;
        case 'a': code = CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&at, number); break;
        case 'k': code = deep(number << 10); break;
        default: return 1;
        }
        if (strchr("ly", what) && !code) count++;
        OK("cuMemGetInfo_v2", CALL(fn_sizes, "cuMemGetInfo_v2")(&left, &total));
        printf("%d %zu\ndone\n", code, left);
        fflush(stdout);
    }
    return 0;
}
