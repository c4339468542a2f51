// What lies between the SMs and memory: latencies by footprint, bandwidths by number and place of SMs, and what one SM's
// loads wait for while others load. One block an SM; an SM's role is looked up by its number. run.py compiles and feeds it.
//
// Each line of standard input is a job: MODE LINES FIRST ROLE… with one role an SM (0 idle, 1 chases, 2 loads from a
// buffer that fits in the L2 cache, 3 loads from memory, 4 adds atomically). The chasing SM visits so many lines of 128
// bytes, from the first on; mode `cached` also uses its L1 cache, `level2` does not, `same` stays on the first line.
// Each answer is a line: nanoseconds a load of the chasing SM, or bytes a nanosecond of the loading ones.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#define CHECK(call)                                                                            \
    do {                                                                                       \
        cudaError_t status = (call);                                                           \
        if (status != cudaSuccess) {                                                           \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status));                    \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

enum Role { IDLE, CHASE, LOAD_CACHE, LOAD_MEMORY, ADD };

struct Shared {
    unsigned arrived, ready, done;
    unsigned long long nanoseconds, bytes;
};

__device__ unsigned sm() {
    unsigned number;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
    return number;
}

__device__ unsigned long long now() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// Line i leads to line i + step, far away, and all lines are one cycle; with step 0 each leads to itself.
__global__ void make_chain(unsigned *chain, size_t lines, size_t step) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < lines; i += gridDim.x * blockDim.x)
        chain[i * 32] = (unsigned)((i + step) % lines * 32);
}

// A block's rounds of loads: 64 bytes a thread and round, from lines that no other block loads in the same round.
__device__ unsigned long long load(const uint4 *from, size_t count, Shared *shared, unsigned long long until, unsigned first,
                                   unsigned step) {
    unsigned long long bytes = 0;
    unsigned sum = 0;
    size_t at = (size_t)first * blockDim.x * 4 + threadIdx.x;
    while (now() < until && !*(volatile unsigned *)&shared->done) {
        for (int round = 0; round < 16; round++) {
            uint4 part[4];
            for (int i = 0; i < 4; i++) {
                size_t index = (at + (size_t)i * blockDim.x) & (count - 1);
                asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
                             : "=r"(part[i].x), "=r"(part[i].y), "=r"(part[i].z), "=r"(part[i].w)
                             : "l"(from + index));
            }
            for (int i = 0; i < 4; i++) sum += part[i].x ^ part[i].w;
            at += (size_t)step * blockDim.x * 4;
            bytes += 64;
        }
    }
    if (sum == 0x12345678) shared->bytes = 1;
    return bytes;
}

__global__ void run(const unsigned char *roles, unsigned waits_for, const unsigned *chain, unsigned first, unsigned loads, int cached,
                    const uint4 *cache, size_t cache_count, const uint4 *memory, size_t memory_count, unsigned *counters,
                    Shared *shared, unsigned long long duration) {
    extern __shared__ unsigned char only_block[];
    const int role = roles[sm()];
    // Until every SM has a block: otherwise one that ends early makes room for a second on its SM.
    if (threadIdx.x == 0) {
        atomicAdd(&shared->arrived, 1);
        while (*(volatile unsigned *)&shared->arrived < gridDim.x) { }
    }
    __syncthreads();
    if (role == IDLE) return;
    __shared__ unsigned rank;
    if (role == CHASE) {
        if (threadIdx.x != 0) return;
        while (*(volatile unsigned *)&shared->ready < waits_for) { }
        unsigned at = first;
        for (int pass = 0; pass < 2; pass++) {
            unsigned long long begin = now();
            for (unsigned i = 0; i < loads; i++) {
                if (cached) asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(at) : "l"(chain + at));
                else asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(at) : "l"(chain + at));
            }
            shared->nanoseconds = now() - begin + (at == 0xffffffff);
        }
        *(volatile unsigned *)&shared->done = 1;
        return;
    }
    if (threadIdx.x == 0) rank = atomicAdd(&shared->ready, 1);
    __syncthreads();
    // Without a chasing SM the loading ones begin together.
    while (*(volatile unsigned *)&shared->ready < waits_for) { }
    unsigned long long begin = now(), bytes = 0;
    if (role == LOAD_CACHE) bytes = load(cache, cache_count, shared, begin + duration, rank, waits_for);
    if (role == LOAD_MEMORY) bytes = load(memory, memory_count, shared, begin + duration, rank, waits_for);
    if (role == ADD) {
        while (now() < begin + duration && !*(volatile unsigned *)&shared->done) {
            for (int i = 0; i < 16; i++) atomicAdd(&counters[(threadIdx.x * 97 + i * 31 + rank * 7) % (1 << 16)], 1u);
            bytes += 64;
        }
    }
    atomicAdd(&shared->bytes, bytes);
    if (only_block[0] == 255) shared->bytes = 0;
}

int main() {
    int sms, cache_size, most;
    CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    CHECK(cudaDeviceGetAttribute(&cache_size, cudaDevAttrL2CacheSize, 0));
    CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    printf("%s, %d SMs, %d MiB of L2\n", properties.name, sms, cache_size >> 20);
    fflush(stdout);
    // A block takes the SM's shared memory, so that each SM has one.
    const int alone = most - 2048;
    CHECK(cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, alone));

    const size_t cache_bytes = 16ull << 20, memory_bytes = 8ull << 30;
    uint4 *cache, *memory;
    unsigned *chain, *counters;
    unsigned char *roles;
    Shared *shared;
    CHECK(cudaMalloc(&cache, cache_bytes));
    CHECK(cudaMemset(cache, 0, cache_bytes));
    CHECK(cudaMalloc(&memory, memory_bytes));
    CHECK(cudaMemset(memory, 0, memory_bytes));
    CHECK(cudaMalloc(&counters, sizeof(unsigned) << 16));
    CHECK(cudaMalloc(&roles, sms));
    CHECK(cudaMalloc(&shared, sizeof *shared));

    std::string line;
    const size_t chain_lines = 128ull << 20;
    CHECK(cudaMalloc(&chain, chain_lines * 128));
    size_t made_lines = 0, made_step = 1;
    while (std::getline(std::cin, line)) {
        std::istringstream words(line);
        std::string mode;
        size_t lines, first;
        words >> mode >> lines >> first;
        if (!words || lines > chain_lines || lines == 0 || first >= lines) {
            fprintf(stderr, "cannot read the job: %.40s\n", line.c_str());
            return 1;
        }
        std::vector<unsigned char> set(sms, 0);
        unsigned loading = 0;
        bool chases = false;
        for (int i = 0, role; i < sms && words >> role; i++) {
            set[i] = role;
            chases |= role == CHASE;
            loading += role > CHASE;
        }
        auto common = [](size_t a, size_t b) { while (b) { size_t c = a % b; a = b; b = c; } return a; };
        size_t step = mode == "same" ? 0 : (size_t)(lines * 0.6180339887) | 1;
        while (step && common(step, lines) != 1) step += 2;
        if (chases && (lines != made_lines || step != made_step)) {
            make_chain<<<1024, 256>>>(chain, lines, step);
            made_lines = lines, made_step = step;
        }
        unsigned loads = lines < 4096 ? 4096 : lines > (1 << 20) ? 200000 : (unsigned)lines;
        CHECK(cudaMemcpy(roles, set.data(), sms, cudaMemcpyHostToDevice));
        CHECK(cudaMemset(shared, 0, sizeof *shared));
        // With a chasing SM the others load until it is done.
        unsigned long long duration = chases ? 10000000000ull : 20000000ull;
        run<<<sms, 1024, alone>>>(roles, loading, chain, (unsigned)(first * 32), loads, mode == "cached", cache, cache_bytes / 16, memory,
                                  memory_bytes / 16, counters, shared, duration);
        CHECK(cudaDeviceSynchronize());
        Shared result;
        CHECK(cudaMemcpy(&result, shared, sizeof result, cudaMemcpyDeviceToHost));
        if (chases) printf("%.3f\n", (double)result.nanoseconds / loads);
        else printf("%.3f\n", (double)result.bytes / 2e7);
        fflush(stdout);
    }
}
