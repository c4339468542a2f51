/* Ways around a preloaded library, for a program or a library of it: what each comes to, a line each. */
#include "cuda.h"

/* Whether libcuda, found in this way, obeys the quota: it allocates no more than there is, and tells that. */
static const char *outcome(void *library) {
    if (!library) return dlerror();
    fn_u init = (fn_u)dlsym(library, "cuInit");
    fn_pui create = (fn_pui)dlsym(library, "cuCtxCreate_v2");
    fn_sizes info = (fn_sizes)dlsym(library, "cuMemGetInfo_v2");
    int (*alloc)(address *, size_t) = (int (*)(address *, size_t))dlsym(library, "cuMemAlloc_v2");
    void *made;
    size_t left, total;
    address p;
    if (!init || !create || !info || !alloc) return "no libcuda";
    if (init(0) || create(&made, 0, 0) || info(&left, &total)) return "no device";
    return total == (size_t)64 << 20 && alloc(&p, total + 1) == 2 ? "held" : "escaped";
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    if (!strcmp(how, "path")) {
        /* The absolute path of the file that the loader finds. */
        void *found = dlopen("libcuda.so.1", RTLD_NOW), *init = found ? dlsym(found, "cuDriverGetVersion") : NULL;
        Dl_info info;
        if (!init || !dladdr(init, &info)) return 1;
        char path[4096];
        if (!realpath(info.dli_fname, path)) return 1;
        printf("%s\n", outcome(dlopen(path, RTLD_NOW | RTLD_LOCAL)));
    } else if (!strcmp(how, "deepbind")) {
        printf("%s\n", outcome(dlopen("libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND)));
    } else if (!strcmp(how, "linked-deep")) {
        /* A library that is linked against libcuda and opened so that its own libraries come first. */
        void *library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
        if (!library) { printf("%s\n", dlerror()); return 1; }
        size_t (*total)(void) = (size_t (*)(void))dlsym(library, "total");
        printf("%s\n", total() == (size_t)64 << 20 ? "held" : "escaped");
    } else if (!strcmp(how, "namespace")) {
        printf("%s\n", outcome(dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW)));
        printf("%s\n", outcome(dlmopen(LM_ID_BASE, "libcuda.so.1", RTLD_NOW)));
    } else if (!strcmp(how, "late")) {
        /* Its environment is the program's own, but what it was started with holds. */
        unsetenv("LD_PRELOAD");
        setenv("PARTITA_LEDGER", "/nowhere", 1);
        printf("%s\n", outcome(dlopen("libcuda.so.1", RTLD_NOW)));
    } else {
        return 2;
    }
    return 0;
}
