/* A shared object that asks for the number of SMs, compiled under the names of several:
 *   -DRUNTIME  the CUDA runtime as a library: it queries the driver for its callers
 *   else       a library: by a runtime of its own, by the shared one, and by a function of its caller's, here and on a thread */
#include <pthread.h>

#include "cuda.h"

typedef int (*fn_attribute)(int *, int, int);

static int asked(void) {
    int sms = -1;
    OK("cuDeviceGetAttribute", ((fn_attribute)by_version("cuDeviceGetAttribute", 13000, 1))(&sms, 16, 0));
    return sms;
}

#ifdef RUNTIME
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    return ((fn_attribute)by_version("cuDeviceGetAttribute", 13000, 1))(value, attribute, device);
}
#else
int cudaDeviceGetAttribute(int *value, int attribute, int device);

int sms_by_own_runtime(void) { return asked(); }

int sms_by_shared_runtime(void) {
    int sms = -1;
    OK("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&sms, 16, 0));
    return sms;
}

int sms_by_caller(int (*ask)(void)) { return ask(); }

static void *on_thread(void *result) {
    *(int *)result = asked();
    return NULL;
}

int sms_on_thread(void) {
    int sms = -1;
    pthread_t thread;
    OK("pthread_create", pthread_create(&thread, NULL, on_thread, &sms));
    OK("pthread_join", pthread_join(thread, NULL));
    return sms;
}
#endif
