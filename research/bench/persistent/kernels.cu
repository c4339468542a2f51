// Kernels of the usual kinds. Each computes the same bits whatever the order of its blocks.
extern "C" {

__device__ unsigned sm() {
    unsigned number;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
    return number;
}

__device__ unsigned long long now_ns() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// How many blocks each SM ran.
__global__ void census(unsigned *blocks) {
    if (threadIdx.x == 0) atomicAdd(&blocks[sm()], 1u);
}

__global__ void empty() {}

__global__ void clock_now(unsigned long long *now) { *now = now_ns(); }

// Each block takes this long and says where it ran and when it ended.
__global__ void spin(unsigned *sms, unsigned long long *ends, unsigned ns) {
    unsigned long long until = now_ns() + ns;
    while (now_ns() < until) {}
    if (threadIdx.x == 0) {
        sms[blockIdx.x] = sm();
        ends[blockIdx.x] = now_ns();
    }
}

__global__ void saxpy(float *out, const float *x, const float *y, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) out[at] = 1.5f * x[at] + y[at];
}

__global__ void matmul(float *out, const float *a, const float *b, int side) {
    __shared__ float left[16][16], right[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int tile = 0; tile < side / 16; tile++) {
        left[threadIdx.y][threadIdx.x] = a[row * side + tile * 16 + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(tile * 16 + threadIdx.y) * side + column];
        __syncthreads();
        for (int k = 0; k < 16; k++) sum += left[threadIdx.y][k] * right[k][threadIdx.x];
        __syncthreads();
    }
    out[row * side + column] = sum;
}

// One sum for each block: shuffles, shared memory, a barrier.
__global__ void sums(float *out, const float *x) {
    __shared__ float part[32];
    float value = x[blockIdx.x * blockDim.x + threadIdx.x];
    for (int step = 16; step; step /= 2) value += __shfl_down_sync(~0u, value, step);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x < 32) {
        value = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;
        for (int step = 16; step; step /= 2) value += __shfl_down_sync(~0u, value, step);
        if (threadIdx.x == 0) out[blockIdx.x] = value;
    }
}

__global__ void histogram(unsigned *out, const unsigned *x, int count) {
    __shared__ unsigned bins[256];
    bins[threadIdx.x] = 0;
    __syncthreads();
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x)
        atomicAdd(&bins[x[at] & 255], 1u);
    __syncthreads();
    atomicAdd(&out[threadIdx.x], bins[threadIdx.x]);
}

__global__ void stencil(float *out, const float *in, int side) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    int z = blockIdx.z * blockDim.z + threadIdx.z, at = (z * side + y) * side + x;
    bool is_inside = x && y && z && x < side - 1 && y < side - 1 && z < side - 1;
    out[at] = is_inside ? 0.5f * in[at] + 0.125f * (in[at - 1] + in[at + 1] + in[at - side] + in[at + side]
                                                    + in[at - side * side] + in[at + side * side]) : in[at];
}

__global__ void bodies(float4 *out, const float4 *in, int count) {
    __shared__ float4 tile[256];
    float4 own = in[blockIdx.x * 256 + threadIdx.x];
    float3 force = {0, 0, 0};
    for (int at = 0; at < count; at += 256) {
        tile[threadIdx.x] = in[at + threadIdx.x];
        __syncthreads();
        for (int k = 0; k < 256; k++) {
            float dx = tile[k].x - own.x, dy = tile[k].y - own.y, dz = tile[k].z - own.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + 1e-6f), scale = tile[k].w * inverse * inverse * inverse;
            force.x += dx * scale, force.y += dy * scale, force.z += dz * scale;
        }
        __syncthreads();
    }
    out[blockIdx.x * 256 + threadIdx.x] = make_float4(force.x, force.y, force.z, own.w);
}
}
