// ---- signals between two GPUs; each spins on its own memory; out: nanoseconds, 0 if the peer was lost ----

__device__ __forceinline__ void send(u32* data, u32 words, volatile int* flag, int turn) {
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) put<1>(data, i, turn);
    __syncthreads();
    if (threadIdx.x == 0) {
        if (words) __threadfence_system();
        *flag = turn;
    }
}

// One after the other stores data (or none) and a flag at the other.
extern "C" __global__ void signals(
    u32* data, u32 words, volatile int* mine, volatile int* theirs, int turns, int first, u64* out
) {
    const u64 start = nanoseconds();
    bool is_there = true;
    for (int turn = 1; turn <= turns; turn++) {
        if (first) send(data, words, theirs, turn);
        if (threadIdx.x == 0 && is_there) is_there = seen(mine, turn, start);
        __syncthreads();
        if (!first) send(data, words, theirs, turn);
    }
    if (threadIdx.x == 0) out[0] = is_there ? nanoseconds() - start : 0;
}

// A barrier of all workgroups of both GPUs, again and again. The workgroup that comes last tells the peer.
extern "C" __global__ void barriers(int* counter, volatile int* mine, volatile int* theirs, int turns, u64* out) {
    const u64 start = nanoseconds();
    bool is_there = true;
    for (int turn = 1; turn <= turns; turn++) {
        const int all = turn * gridDim.x;
        __syncthreads();
        if (threadIdx.x == 0 && is_there) {
            __threadfence();
            if (atomicAdd(counter, 1) + 1 == all) {
                __threadfence_system();
                *theirs = turn;
            }
            is_there = seen(mine, turn, start) && seen(counter, all, start);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0 && blockIdx.x == 0) out[0] = is_there ? nanoseconds() - start : 0;
}
