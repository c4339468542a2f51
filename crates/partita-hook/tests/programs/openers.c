/* A library that stands before the linker's functions, as sanitizers do: each call is counted and goes on to
 * the next one. openers() says how many came by. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

static int calls;
int openers(void) { return calls; }

void *dlopen(const char *name, int flags) {
    static void *(*next)(const char *, int);
    if (!next) next = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    if (++calls > 1000) abort();
    return next(name, flags);
}

void *dlmopen(Lmid_t space, const char *name, int flags) {
    static void *(*next)(Lmid_t, const char *, int);
    if (!next) next = (void *(*)(Lmid_t, const char *, int))dlsym(dlopen("libc.so.6", RTLD_NOW), "dlmopen");
    if (++calls > 1000) abort();
    return next(space, name, flags);
}
