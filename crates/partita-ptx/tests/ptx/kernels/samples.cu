// Sample kernels; samples.ptx is what nvrtc 13.0 makes of them (`--gpu-architecture=compute_90`).
// The tests compute the same on the host and compare.

extern "C" {

// The kernel that every introduction to CUDA begins with.
__global__ void vecAdd(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

__global__ void saxpy(int n, float a, const float *x, float *y) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = a * x[i] + y[i];
}

// Each block's sum, through shared memory.
__global__ void reduce(const int *in, int *out, int n) {
    __shared__ int part[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    part[threadIdx.x] = i < n ? in[i] : 0;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

#define TILE 16
__global__ void matmul(const float *a, const float *b, float *c, int n) {
    __shared__ float ta[TILE][TILE], tb[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int k0 = 0; k0 < n; k0 += TILE) {
        ta[threadIdx.y][threadIdx.x] = row < n && k0 + threadIdx.x < n ? a[row * n + k0 + threadIdx.x] : 0;
        tb[threadIdx.y][threadIdx.x] = column < n && k0 + threadIdx.y < n ? b[(k0 + threadIdx.y) * n + column] : 0;
        __syncthreads();
        for (int k = 0; k < TILE; k++) sum += ta[threadIdx.y][k] * tb[k][threadIdx.x];
        __syncthreads();
    }
    if (row < n && column < n) c[row * n + column] = sum;
}

__global__ void histogram(const unsigned char *data, int n, unsigned *bins) {
    extern __shared__ unsigned own[];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) own[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&own[data[i]], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], own[i]);
}

// Inclusive sums of a block of up to 1024 numbers, through shuffles.
__global__ void scan(const int *in, int *out) {
    __shared__ int sums[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int value = in[threadIdx.x];
    for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(0xffffffff, value, step);
        if (lane >= step) value += other;
    }
    if (lane == 31) sums[warp] = value;
    __syncthreads();
    if (warp == 0) {
        int sum = lane < blockDim.x / 32 ? sums[lane] : 0;
        for (int step = 1; step < 32; step *= 2) {
            int other = __shfl_up_sync(0xffffffff, sum, step);
            if (lane >= step) sum += other;
        }
        sums[lane] = sum;
    }
    __syncthreads();
    out[threadIdx.x] = value + (warp > 0 ? sums[warp - 1] : 0);
}

// Threads leave at different times, some inside the loop.
__global__ void collatz(const unsigned *in, unsigned *steps, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long x = in[i];
    unsigned count = 0;
    while (x != 1) {
        if (x == 0) {
            steps[i] = 0xffffffff;
            return;
        }
        x = x & 1 ? 3 * x + 1 : x / 2;
        count++;
    }
    steps[i] = count;
}

__device__ __noinline__ unsigned ackermann(unsigned m, unsigned n) {
    if (m == 0) return n + 1;
    if (n == 0) return ackermann(m - 1, 1);
    return ackermann(m - 1, ackermann(m, n - 1));
}

// Each thread recurses to another depth.
__global__ void recurse(unsigned *out) { out[threadIdx.x] = ackermann(threadIdx.x % 3, threadIdx.x % 5); }

struct Pair {
    double left;
    int right;
};

__device__ __noinline__ Pair swapped(Pair pair, int scale) { return {pair.right * (double)scale, (int)pair.left}; }

__global__ void structures(const Pair *in, Pair *out, Pair by) {
    int i = threadIdx.x;
    Pair sum = {in[i].left + by.left, in[i].right + by.right};
    out[i] = swapped(sum, i);
}

// A jump table.
__global__ void choose(const int *what, int *out) {
    int i = threadIdx.x, x = i * 7;
    switch (what[i]) {
    case 0: x += 11; break;
    case 1: x *= 3; break;
    case 2: x ^= 0x55; break;
    case 3: x = __popc(x); break;
    case 4: x = __clz(x); break;
    case 5: x = __brev(x); break;
    case 6: x = -x; break;
    case 7: x %= 5; break;
    }
    out[i] = x;
}

__device__ int twice(int x) { return 2 * x; }
__device__ int square(int x) { return x * x; }
__device__ int (*const functions[2])(int) = {twice, square};
__global__ void indirect(int *out) { out[threadIdx.x] = functions[threadIdx.x & 1](threadIdx.x); }

__constant__ float weights[4] = {0.25f, 0.5f, 1.0f, -2.0f};
__device__ unsigned long long total = 5;
__global__ void weigh(const float *in, float *out) {
    out[threadIdx.x] = in[threadIdx.x] * weights[threadIdx.x & 3];
    atomicAdd(&total, (unsigned long long)threadIdx.x);
}

// The precise functions, whose slow path for large arguments uses local memory.
__global__ void trigonometry(const float *in, float *out) {
    int i = threadIdx.x;
    out[3 * i] = sinf(in[i]);
    out[3 * i + 1] = cosf(in[i]);
    out[3 * i + 2] = expf(-fabsf(in[i]) / 100.0f) / sqrtf(1.0f + in[i] * in[i]);
}

__global__ void doubles(const double *in, double *out) {
    int i = threadIdx.x;
    out[4 * i] = sqrt(in[i]);
    out[4 * i + 1] = 1.0 / in[i];
    out[4 * i + 2] = exp(in[i] / 1e3);
    out[4 * i + 3] = floor(in[i]) + fmod(in[i], 3.0);
}

__global__ void division(const long long *a, const long long *b, long long *out) {
    int i = threadIdx.x;
    out[3 * i] = a[i] / b[i];
    out[3 * i + 1] = (unsigned long long)a[i] % (unsigned long long)b[i];
    out[3 * i + 2] = __mul64hi(a[i], b[i]);
}

// All blocks wait for each other in device memory: they must run at the same time.
__global__ void meet(unsigned *arrived, unsigned *out) {
    __shared__ unsigned before;
    if (threadIdx.x == 0) {
        out[blockIdx.x] = blockIdx.x + 1;
        __threadfence();
        atomicAdd(arrived, 1);
        while (*(volatile unsigned *)arrived < gridDim.x) {}
        before = out[(blockIdx.x + 1) % gridDim.x];
    }
    __syncthreads();
    out[gridDim.x + blockIdx.x * blockDim.x + threadIdx.x] = before;
}

// Threads of one warp take a lock in turn.
__global__ void locked(unsigned *lock, unsigned *count) {
    bool done = false;
    while (!done) {
        if (atomicCAS(lock, 0, 1) == 0) {
            unsigned value = *(volatile unsigned *)count;
            *(volatile unsigned *)count = value + 1;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
    }
}

__global__ void votes(const int *in, unsigned *out) {
    unsigned lane = threadIdx.x & 31;
    int value = in[threadIdx.x];
    unsigned ballot = __ballot_sync(0xffffffff, value > 0);
    unsigned same = __match_any_sync(0xffffffff, value);
    unsigned sum = __reduce_add_sync(0xffffffff, value);
    unsigned odd = 0;
    if (lane & 1) odd = __shfl_xor_sync(0xaaaaaaaa, value, 2);
    unsigned flags = __any_sync(0xffffffff, value == 3) * 2 + __all_sync(0xffffffff, value < 9);
    unsigned counted = __syncthreads_count(value > 1);
    unsigned *to = out + 6 * threadIdx.x;
    to[0] = ballot, to[1] = same, to[2] = sum, to[3] = odd, to[4] = flags, to[5] = counted;
}

}
