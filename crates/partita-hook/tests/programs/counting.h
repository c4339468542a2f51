/* Counts every allocation and every lock of the process while `counting` is set; of the thread that sets it alone, where COUNTED is __thread. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#ifndef COUNTED
#define COUNTED
#endif
static COUNTED volatile int counting;
static volatile long allocations, locks;

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

void *malloc(size_t bytes) { if (counting) allocations++; return __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) { if (counting) allocations++; return __libc_calloc(count, bytes); }
void *realloc(void *old, size_t bytes) { if (counting) allocations++; return __libc_realloc(old, bytes); }
void free(void *old) { if (counting) allocations++; __libc_free(old); }
int posix_memalign(void **out, size_t alignment, size_t bytes) {
    if (counting) allocations++;
    *out = __libc_memalign(alignment, bytes);
    return *out ? 0 : 12;
}
int pthread_mutex_lock(pthread_mutex_t *mutex) {
    static int (*next)(pthread_mutex_t *);
    if (counting) locks++;
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "pthread_mutex_lock");
    return next(mutex);
}
