// ---- a few workgroups that load, read or copy, while others stream; an SM each, all in one kernel ----
// record: of each of the former how many nanoseconds it took; of each of the others the bytes that it read and wrote,
// and in how many nanoseconds, once all were in their stride.

enum { LOADS, READS, COPIES };
enum { READING = 1, WRITING = 2 };
enum { SETTLE_NS = 50000 };

__device__ __forceinline__ uint4 past_l1(const uint4* a) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(a) : "memory");
    return v;
}

extern "C" __global__ void __launch_bounds__(1024, 1) beside(
    int probe, int probes, int streams, const u32* chain, u32 start, const uint4* from, uint4* to, u64 words,
    const uint4* streamed, uint4* written, u64 stream_words, int* counters, u64* record
) {
    const int thread = threadIdx.x, block = blockIdx.x;
    if (thread == 0) {
        atomicAdd(counters, 1);
        seen(counters, gridDim.x, nanoseconds());
    }
    __syncthreads();
    const u64 began = nanoseconds();
    u32 sum = 0;
    if (block < probes) {
        while (nanoseconds() - began < 2 * SETTLE_NS) {}
        __syncthreads();
        const u64 t0 = nanoseconds();
        if (probe == LOADS && thread == 0) {
            u32 at = start;
            for (u64 i = 0; i < words; i += 8)
                asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(at) : "l"(chain + at) : "memory");
            sum = at;
        }
        // As the warps of NCCL do: 512 threads, each with eight loads of 16 bytes before the first store.
        if (probe != LOADS && thread < 512) for (u64 i = thread; i < words; i += 8 * 512) {
            const u64 at = block * words + i;
            uint4 v[8];
            UNROLL for (int j = 0; j < 8; j++) v[j] = past_l1(from + at + j * 512);
            UNROLL for (int j = 0; j < 8; j++)
                if (probe == COPIES) to[at + j * 512] = v[j];
                else sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
        }
        if (probe == COPIES) __threadfence();
        __syncthreads();
        if (thread == 0) {
            record[2 * block] = nanoseconds() - t0;
            atomicAdd(counters + 1, 1);
        }
    } else {
        u64 turns = 0, settled = 0, settled_at = 0;
        const u64 all = 4096ull * (gridDim.x - probes);
        for (u64 first = 4096ull * (block - probes); ; first += all) {
            if (first + 4096 > stream_words) first = 4096ull * (block - probes);
            const u64 at = first + thread;
            uint4 v[4] = {};
            UNROLL for (int j = 0; j < 4; j++) if (streams & READING) v[j] = past_l1(streamed + at + j * 1024);
            UNROLL for (int j = 0; j < 4; j++)
                if (streams & WRITING) written[at + j * 1024] = make_uint4(v[j].x, (u32)turns, thread, v[j].w);
                else sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
            turns++;
            if (!settled_at && nanoseconds() - began > SETTLE_NS) { settled = turns; settled_at = nanoseconds(); }
            if (!(turns & 7) && *(volatile int*)(counters + 1) >= probes) break;
        }
        if (thread == 0) {
            record[2 * block] = (turns - settled) * 65536 * ((streams & READING ? 1 : 0) + (streams & WRITING ? 1 : 0));
            record[2 * block + 1] = nanoseconds() - settled_at;
        }
    }
    if (sum == 0x9e3779b9u) counters[2] = sum;
}
