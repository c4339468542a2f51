/* A wall clock that jumps at each reading, by up to 20 years in each direction. */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t jump(void) {
    static _Atomic uint64_t count;
    uint64_t mixed = ++count * 0x9e3779b97f4a7c15u;
    int64_t span = 20LL * 365 * 86400;
    return (int64_t)((mixed >> 20) % (2 * (uint64_t)span)) - span;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        time->tv_sec += jump();
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    int result = syscall(SYS_gettimeofday, time, zone);
    if (result == 0 && time)
        time->tv_sec += jump();
    return result;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}
