/* Ways around a preloaded library, for a program or a library of it: what each comes to, a line each. */
#define _GNU_SOURCE
#include "cuda.h"
#include <elf.h>
#include <link.h>

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

/* The address of a function in the tables of a loaded object, as debuggers and interposers find it. */
struct wanted {
    const char *file, *name;
    void *found;
};

static int look(struct dl_phdr_info *object, size_t bytes, void *data) {
    struct wanted *wanted = data;
    ElfW(Dyn) *entry = NULL;
    if (!strstr(object->dlpi_name, wanted->file)) return 0;
    for (int header = 0; header < object->dlpi_phnum; header++)
        if (object->dlpi_phdr[header].p_type == PT_DYNAMIC) entry = (void *)(object->dlpi_addr + object->dlpi_phdr[header].p_vaddr);
    const char *strings = NULL;
    ElfW(Sym) *symbols = NULL;
    for (; entry && entry->d_tag; entry++) {
        if (entry->d_tag == DT_STRTAB) strings = (const char *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_SYMTAB) symbols = (ElfW(Sym) *)entry->d_un.d_ptr;
    }
    for (ElfW(Sym) *symbol = symbols; symbol && (const char *)symbol < strings; symbol++)
        if (symbol->st_value && !strcmp(strings + symbol->st_name, wanted->name)) {
            wanted->found = (void *)(object->dlpi_addr + symbol->st_value);
            return 1;
        }
    return 0;
}

typedef void *(*look_up)(void *, const char *);
typedef void *(*open_file)(const char *, int);

/* The linker's own functions, looked up in several ways, and libcuda through them. */
static const char *through(look_up found, void *library) {
    fn_u init = (fn_u)found(library, "cuInit");
    fn_pui create = (fn_pui)found(library, "cuCtxCreate_v2");
    int (*alloc)(address *, size_t) = (int (*)(address *, size_t))found(library, "cuMemAlloc_v2");
    void *made;
    address p;
    if (!init || init(0) || create(&made, 0, 0)) return "no device";
    return alloc(&p, ((size_t)64 << 20) + 1) == 2 ? "held" : "escaped";
}

static void linkers_functions(void) {
    void *c = dlopen("libc.so.6", RTLD_NOW), *driver = dlopen("libcuda.so.1", RTLD_NOW);
    const char *versions[] = {"GLIBC_2.2.5", "GLIBC_2.34"};
    printf("%s\n", through((look_up)dlsym(c, "dlsym"), driver));
    printf("%s\n", through((look_up)dlsym(RTLD_NEXT, "dlsym"), driver));
    for (int at = 0; at < 2; at++) {
        look_up found = (look_up)dlvsym(c, "dlsym", versions[at]);
        printf("%s\n", found ? through(found, driver) : "held");
    }
    void *(*versioned)(void *, const char *, const char *) = (void *(*)(void *, const char *, const char *))dlsym(c, "dlvsym");
    look_up again = (look_up)versioned(c, "dlsym", "GLIBC_2.2.5");
    printf("%s\n", through(again ? again : (look_up)versioned(c, "dlsym", "GLIBC_2.34"), driver));
    void *(*in_namespace)(Lmid_t, const char *, int) = (void *(*)(Lmid_t, const char *, int))dlsym(c, "dlmopen");
    printf("%s\n", in_namespace(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW) ? "escaped" : "held");
    /* What other libraries ask for next is the C library's, and works as ever. */
    printf("%s\n", dlsym(RTLD_NEXT, "malloc") == dlsym(c, "malloc") ? "held" : "another malloc");
}

/* For names and versions of which a driver may answer several with one address, the entry points of other names. */
static int entry_points_of_other_names(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*get)(const char *, void **, int, uint64_t, int *) =
        (int (*)(const char *, void **, int, uint64_t, int *))dlsym(driver, "cuGetProcAddress_v2");
    static const char *names[] = {"cuMemAlloc", "cuMemFree", "cuArray3DCreate", "cuArrayCreate", "cuMemAllocPitch", "cuMemGetInfo",
                                  "cuDeviceTotalMem", "cuCtxDestroy", "cuCtxCreate", "cuStreamDestroy", "cuGraphInstantiate",
                                  "cuStreamBeginCapture", "cuLaunchKernel", "cuGetProcAddress", "cuEventDestroy", "cuStreamGetCaptureInfo"};
    int others = 0, all = 0;
    ((fn_u)dlsym(driver, "cuInit"))(0);
    for (size_t name = 0; name < sizeof names / sizeof *names; name++)
        for (int version = 2000; version <= 13000; version += 10)
            for (uint64_t flags = 0; flags < 3; flags++) {
                void *found = NULL;
                int status;
                Dl_info info = {0};
                if (get(names[name], &found, version, flags, &status) || !found || !dladdr(found, &info)) continue;
                if (!strstr(info.dli_fname, "libpartita.so")) continue;
                all++;
                others += strncmp(info.dli_sname, names[name], strlen(names[name])) != 0;
            }
    printf("%s\n", all > 1000 ? "many" : "few");
    return others;
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
    } else if (!strcmp(how, "linker")) {
        linkers_functions();
    } else if (!strcmp(how, "names")) {
        printf("%d\n", entry_points_of_other_names());
    } else if (!strcmp(how, "shim")) {
        /* A library with a cuInit of its own that a look-up meets first. */
        void *shim = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
        fn_u init = shim ? (fn_u)dlsym(shim, "cuInit") : NULL;
        printf("%d\n", init ? init(0) : -1);
        printf("%s\n", outcome(dlopen("libcuda.so.1", RTLD_NOW)));
    } else if (!strcmp(how, "copy") || !strcmp(how, "copy-later")) {
        /* Another copy of the driver's file, before the one that the linker finds or after it. */
        if (!strcmp(how, "copy-later")) dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuInit");
        void *copy = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
        printf("%s\n", outcome(copy));
        printf("%s\n", outcome(dlopen("libcuda.so.1", RTLD_NOW)));
    } else if (!strcmp(how, "init-elsewhere")) {
        /* Only cuInit is called past the hook. */
        void *driver = dlopen("libcuda.so.1", RTLD_NOW);
        struct wanted init = {"cuda", "cuInit", NULL};
        dl_iterate_phdr(look, &init);
        if (!init.found || ((fn_u)init.found)(0)) return 1;
        printf("%s\n", outcome(driver));
    } else if (!strcmp(how, "beyond")) {
        /* A process with a slot that asks the driver for memory past the hook, and waits. */
        start(0);
        struct wanted alloc = {"cuda", "cuMemAlloc_v2", NULL};
        address p;
        dl_iterate_phdr(look, &alloc);
        if (!alloc.found || ((int (*)(address *, size_t))alloc.found)(&p, (size_t)3 << 30)) return 1;
        printf("had\ndone\n");
        fflush(stdout);
        while (getchar() != EOF) {}
    } else if (!strcmp(how, "refused")) {
        /* A process whose limits cannot be enforced: what each call answers. */
        void *driver = dlopen("libcuda.so.1", RTLD_NOW), *made = NULL;
        address p;
        printf("%d", ((fn_u)dlsym(driver, "cuInit"))(0));
        printf(" %d", ((fn_pui)dlsym(driver, "cuCtxCreate_v2"))(&made, 0, 0));
        printf(" %d", ((int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain"))(&made, 0));
        printf(" %d", ((int (*)(address *, size_t))dlsym(driver, "cuMemAlloc_v2"))(&p, 1024));
        printf(" %d", ((int (*)(unsigned, size_t))dlsym(driver, "cuCtxSetLimit"))(2, (size_t)1 << 30));
        int host = ((int (*)(void **, size_t, unsigned))dlsym(driver, "cuMemHostAlloc"))(&made, 1 << 20, 2);
        int set = ((int (*)(address, unsigned char, size_t))dlsym(driver, "cuMemsetD8_v2"))((address)(uintptr_t)made, 1, 1 << 20);
        printf(" %s %s\n", host ? "refused" : "given", set ? "refused" : "done");
    } else {
        return 2;
    }
    return 0;
}
